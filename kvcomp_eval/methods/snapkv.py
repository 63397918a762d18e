"""SnapKV: keep what the end of the prompt looks at."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvcomp_eval.methods.base import LayerPrefill
from kvcomp_eval.methods.window import WindowMethod


@dataclass(frozen=True)
class SnapKV(WindowMethod):
    """Per KV head, the prompt tokens that the observation window attends to most, and the window.

    Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024,
    arXiv 2404.14469. Scores are averaged over the window and the GQA group, then pooled; so selection is per
    KV head (the official code selects per query head and caches G times more).
    """

    name = "snapkv"
    paper = "arXiv 2404.14469"

    def head_entries(self, prefill: LayerPrefill, scores: Tensor, entries: int, window: int) -> list[int]:
        return [entries] * prefill.num_kv_heads
