"""Random selection: the floor that every method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcomp_eval.methods.base import LayerMethod, LayerPlan, LayerPrefill, check_at_least
from kvcomp_eval.selection import window_positions
from kvcomp_eval.stores.heads import HeadPlan


@dataclass(frozen=True)
class Random(LayerMethod):
    """The window and random prompt tokens, drawn for each layer and KV head.

    Parameters
    ----------
    window : int
        Last tokens, always kept, as in the window methods that it is compared with.
    seed : int
        The draw depends on seed, layer, head and prompt length only.
    """

    window: int = 32
    seed: int = 0

    name = "random"
    paper = "-"
    kind = "reference"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("window", self.window, 1)

    @property
    def least_window(self) -> int:
        return self.window

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        length = prefill.length
        window = self.window_for(self.window, length)
        # Drawn on the CPU, so that every device keeps the same tokens.
        generator = torch.Generator().manual_seed((self.seed * 10_007 + prefill.layer) * 1_000_003 + length)
        scores = torch.rand(prefill.num_kv_heads, length - window, generator=generator).to(prefill.keys.device)
        return tuple(HeadPlan(window_positions(head, entries, length, window)) for head in scores)
