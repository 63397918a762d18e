"""PyramidKV: SnapKV with a budget that falls from layer to layer."""

from __future__ import annotations

from dataclasses import dataclass

from kvcomp_eval.budgets.pyramid import pyramid_budgets
from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, check_at_least
from kvcomp_eval.methods.window import WindowMethod
from kvcomp_eval.selection import window_positions
from kvcomp_eval.stores.heads import HeadPlan


@dataclass(frozen=True)
class PyramidKV(WindowMethod):
    """SnapKV's selection; lower layers keep more, upper ones less, with the same mean.

    Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling",
    arXiv 2406.02069.

    Parameters
    ----------
    beta : int
        Steepness; the top layer keeps ``1 / beta`` of the mean. 20 as in the official code; 1 is SnapKV.
    official : bool
        The official code's integer step, which overshoots the budget.
    """

    beta: int = 20
    official: bool = False

    name = "pyramidkv"
    paper = "arXiv 2406.02069"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("beta", self.beta, 1)

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        length = prefill.length
        window = self.window_for(self.window, length)
        schedule = pyramid_budgets(entries - window, prefill.num_layers, self.beta, length, window, self.official)
        kept = schedule[prefill.layer] + window
        scores = self.prefix_scores(prefill, window)
        return tuple(HeadPlan(window_positions(head, kept, length, window)) for head in scores)
