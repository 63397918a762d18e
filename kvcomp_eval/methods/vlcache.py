"""VL-Cache: layers that attend densely keep more; the question decides what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, check_at_least, check_share
from kvcomp_eval.methods.spread import LayerScores, SpreadMethod
from kvcomp_eval.methods.window import keep_best
from kvcomp_eval.scoring.columns import density_and_sums


@dataclass(frozen=True)
class VLCache(SpreadMethod):
    """Budgets by layer from the density of the question's attention; its attention also scores the tokens.

    Tu et al., "VL-Cache: Sparsity and Modality-Aware KV Cache Compression for Vision-Language Model Inference
    Acceleration", ICLR 2025, arXiv 2410.23317. "The question" is the text behind the last visual token.

    Parameters
    ----------
    threshold : float
        An attention entry counts as dense from this part of its row's maximum.
    recent_share : float
        Part of a layer's budget for the last tokens.
    fallback_window : int
        Queries at the end of a prompt without visual tokens, or without text behind them.
    """

    threshold: float = 0.01
    recent_share: float = 0.1
    fallback_window: int = 32

    name = "vlcache"
    paper = "arXiv 2410.23317"
    varies = "layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold} must lie in (0, 1].")
        check_share("recent_share", self.recent_share)
        check_at_least("fallback_window", self.fallback_window, 1)

    def observe(self, prefill: LayerPrefill) -> LayerScores:
        rows = question_rows(prefill.visual, self.fallback_window)
        spread, received = density_and_sums(prefill.queries, prefill.keys, rows, prefill.scaling, self.threshold)
        return LayerScores(spread, received, prefill.visual)

    def weights(self, spreads: list[float]) -> Sequence[float]:
        return spreads

    def keep(self, layer: LayerScores, entries: int) -> LayerPlan:
        length = layer.received.shape[1]
        recent = max(1, int(entries * self.recent_share + 0.5))
        return keep_best(layer.received[:, : length - recent], [entries] * len(layer.received), recent)


def question_rows(visual: Tensor, fallback_window: int) -> Tensor:
    """Positions behind the last visual token; without such, the last ``fallback_window`` of the prompt."""
    length = len(visual)
    positions = torch.arange(length, device=visual.device)
    behind = positions[visual.flip(0).cumsum(0).flip(0) == 0]
    return behind if 0 < len(behind) < length else positions[-fallback_window:]
