"""SnapKV: keep what the end of the prompt looks at."""

from __future__ import annotations

from dataclasses import dataclass

from kvcomp_eval.methods.base import LayerPlan, LayerPrefill
from kvcomp_eval.methods.window import WindowMethod
from kvcomp_eval.selection import window_positions
from kvcomp_eval.stores.heads import HeadPlan


@dataclass(frozen=True)
class SnapKV(WindowMethod):
    """Per KV head, the prompt tokens that the observation window attends to most, and the window.

    Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024,
    arXiv 2404.14469. Scores are averaged over the window and the GQA group, then pooled; so selection is per
    KV head (the official code selects per query head and caches G times more).
    """

    name = "snapkv"
    paper = "arXiv 2404.14469"

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        length = prefill.length
        window = self.window_for(self.window, length)
        scores = self.prefix_scores(prefill, window)
        return tuple(HeadPlan(window_positions(head, entries, length, window)) for head in scores)
