"""PyramidKV: SnapKV with a budget that falls from layer to layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvcomp_eval.budgets.pyramid import pyramid_budgets
from kvcomp_eval.methods.base import LayerPrefill, check_at_least
from kvcomp_eval.methods.window import WindowMethod


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
    varies = "layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("beta", self.beta, 1)

    def head_entries(self, prefill: LayerPrefill, scores: Tensor, entries: int, window: int) -> list[int]:
        schedule = pyramid_budgets(
            entries - window, prefill.num_layers, self.beta, prefill.length, window, self.official
        )
        return [schedule[prefill.layer] + window] * prefill.num_kv_heads
