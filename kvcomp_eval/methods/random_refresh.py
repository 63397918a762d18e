"""Random re-selection: the floor for methods that re-select while decoding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcomp_eval.methods.base import LayerMethod, LayerPlan, LayerPrefill, check_at_least, check_share
from kvcomp_eval.stores.heads import HeadPlan
from kvcomp_eval.stores.random_refresh import RandomRetrieval


@dataclass(frozen=True)
class RandomRefresh(LayerMethod):
    """RCR's layout and rate, with random entries at random steps.

    Parameters
    ----------
    window : int
        Last prompt tokens, always kept.
    rate : float
        Share of layer-steps that draw anew.
    seed : int
        The draws depend on seed, layer and prompt length only.
    offload : bool
        Prefix keys and values on the host.
    """

    window: int = 32
    rate: float = 0.4
    seed: int = 0
    offload: bool = True

    name = "random_refresh"
    paper = "-"
    kind = "reference"
    decoding = "re-select at random"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("window", self.window, 1)
        check_share("rate", self.rate)

    @property
    def least_window(self) -> int:
        return self.window

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        length = prefill.length
        window = self.window_for(self.window, length)
        retrieval = RandomRetrieval(
            selected=entries - window,
            prefix=length - window,
            rate=self.rate,
            seed=(self.seed * 10_007 + prefill.layer) * 1_000_003 + length,
            offload=self.offload,
        )
        kept = torch.arange(length - window, length, device=prefill.keys.device)
        return (HeadPlan(kept, retrieval),) * prefill.num_kv_heads
