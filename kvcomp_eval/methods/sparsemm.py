"""SparseMM: SnapKV with more entries for the heads that read images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from kvcomp_eval.budgets.head_scores import HeadScores, head_score_budgets
from kvcomp_eval.methods.base import LayerPlan, LayerPrefill
from kvcomp_eval.methods.window import WindowMethod


@dataclass(frozen=True)
class SparseMM(WindowMethod):
    """SnapKV's scores within a head; the heads of all layers share the budget by how visual they are.

    Wang et al., "SparseMM: Head Sparsity Emerges from Visual Concept Responses in MLLMs", ICCV 2025,
    arXiv 2506.05344. The visual-head scores belong to a model and are measured once, by ``kvcomp-eval heads``.

    Parameters
    ----------
    head_scores : str
        File with the scores, or ``demo`` for those of the embedded model.
    ratio : float
        Part of the budget that is the same for all heads; 1 is SnapKV. 0.1 as in the paper.
    official : bool
        The official rounding, which misses the total, and loses what a head cannot use.
    """

    head_scores: str | None = None
    ratio: float = 0.1
    official: bool = False

    name = "sparsemm"
    paper = "arXiv 2506.05344"
    varies = "layer, head"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"ratio={self.ratio} must lie between 0 and 1.")
        _ = self.scores  # a bad file is refused here, not after the model was loaded

    @cached_property
    def scores(self) -> HeadScores:
        """The scores, read once."""
        return HeadScores.read(self.head_scores)

    def observe(self, prefill: LayerPrefill) -> LayerPlan:
        self._shares(prefill)  # refuses scores of another model even where nothing is dropped
        return super().observe(prefill)

    def head_entries(self, prefill: LayerPrefill, scores: Tensor, entries: int, window: int) -> list[int]:
        budgets = head_score_budgets(
            self._shares(prefill), entries - window, prefill.length - window, self.ratio, self.official
        )
        return [int(budget) + window for budget in budgets[prefill.layer]]

    def plan(self, observations: Sequence[LayerPlan], details: dict[str, Any]) -> list[LayerPlan]:
        details.setdefault("head_scores", self.scores.source)
        return super().plan(observations, details)

    def _shares(self, prefill: LayerPrefill) -> Any:
        """Share of the model's score that each KV head has, [L, Hkv]."""
        return self.scores.per_kv_head(prefill.num_layers, prefill.queries.shape[0], prefill.num_kv_heads)
