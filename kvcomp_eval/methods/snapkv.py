"""SnapKV: keep what the end of the prompt looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvcomp_eval.methods.base import (
    LayerPlan,
    LayerPrefill,
    Method,
    check_at_least,
    keep_everything,
)
from kvcomp_eval.scoring.pooling import check_pooling, pool_scores
from kvcomp_eval.scoring.window import window_scores
from kvcomp_eval.selection import window_positions
from kvcomp_eval.stores.heads import HeadPlan


@dataclass(frozen=True)
class SnapKV(Method):
    """Per KV head, the prompt tokens that the observation window attends to most, and the window.

    Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024,
    arXiv 2404.14469. Scores are averaged over the window and the GQA group, then pooled; so selection is per
    KV head (the official code selects per query head and caches G times more).

    Parameters
    ----------
    window : int
        Observation window. 32 is what the multimodal follow-ups (SparseMM, MixKV, BACON) use.
    kernel : int
        Pooling width along positions; 1 turns pooling off.
    pooling : str
        ``avg`` or ``max``. The official LongBench runs use kernel 7 and max.
    """

    window: int = 32
    kernel: int = 5
    pooling: str = "avg"

    name = "snapkv"
    paper = "arXiv 2404.14469"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("window", self.window, 1)
        check_pooling(self.kernel, self.pooling)

    def observe(self, prefill: LayerPrefill) -> LayerPlan:
        length = prefill.length
        entries = self.entries(length, self.window)
        if entries >= length:
            return keep_everything(prefill)
        window = self.window_for(self.window, length)
        scores = window_scores(prefill.queries, prefill.keys, window, prefill.scaling)
        pooled = pool_scores(scores[:, : length - window], self.kernel, self.pooling)
        return tuple(HeadPlan(window_positions(head, entries, length, window)) for head in pooled)

    def plan(self, observations: Sequence[LayerPlan], details: dict[str, Any]) -> list[LayerPlan]:
        return list(observations)
