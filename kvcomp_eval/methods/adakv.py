"""AdaKV: SnapKV with budgets that follow each head's scores."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvcomp_eval.budgets.adaptive import adaptive_budgets
from kvcomp_eval.methods.base import LayerPrefill, check_share
from kvcomp_eval.methods.window import WindowMethod


@dataclass(frozen=True)
class AdaKV(WindowMethod):
    """SnapKV's scores; within a layer, heads with spread-out attention keep more than focused ones.

    Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation", NeurIPS 2025,
    arXiv 2407.11550.

    Parameters
    ----------
    floor : float
        Share of the mean that every head is safe for; 1 is SnapKV. 0.2 as in the official evaluation.
    normalize : bool
        Scale scores by the mass that a head's own best tokens hold (on in the SparseMM and BACON ports).
    official : bool
        The official rounding, which misses the total by a few entries.
    """

    floor: float = 0.2
    normalize: bool = False
    official: bool = False

    name = "adakv"
    paper = "arXiv 2407.11550"
    varies = "head"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("floor", self.floor)

    def head_entries(self, prefill: LayerPrefill, scores: Tensor, entries: int, window: int) -> list[int]:
        budgets = adaptive_budgets(scores, entries - window, self.floor, self.normalize, self.official)
        return [budget + window for budget in budgets]
