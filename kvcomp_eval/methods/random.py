"""Random selection: the floor that every method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, WindowedMethod
from kvcomp_eval.methods.window import keep_best


@dataclass(frozen=True)
class Random(WindowedMethod):
    """The window and random prompt tokens, drawn for each layer and KV head.

    Parameters
    ----------
    seed : int
        The draw depends on seed, layer, head and prompt length only.
    """

    seed: int = 0

    name = "random"
    paper = "-"
    kind = "reference"

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        window = self.window_for(self.window, prefill.length)
        # Drawn on the CPU, so that every device keeps the same tokens.
        generator = torch.Generator().manual_seed(seed_of(self.seed, prefill))
        scores = torch.rand(prefill.num_kv_heads, prefill.length - window, generator=generator)
        return keep_best(scores.to(prefill.keys.device), [entries] * prefill.num_kv_heads, window)


def seed_of(seed: int, prefill: LayerPrefill) -> int:
    """Seed of the draws of one layer and prompt length."""
    return (seed * 10_007 + prefill.layer) * 1_000_003 + prefill.length
