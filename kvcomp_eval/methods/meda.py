"""MEDA: layers whose cross-modal attention is spread out keep more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import softmax

from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, check_choice, check_share
from kvcomp_eval.methods.h2o import recent_entries
from kvcomp_eval.methods.lookm import NO_MERGE, merged_plan, text_first
from kvcomp_eval.methods.spread import LayerScores, SpreadMethod
from kvcomp_eval.scoring.columns import column_sums, cross_modal_entropy, entropy_and_sums
from kvcomp_eval.stores.merge import MERGE_RULES

ENTROPIES = ("cross_modal", "causal")


@dataclass(frozen=True)
class Meda(SpreadMethod):
    """Budgets by layer from the entropy of text-visual attention; selection and merging as in LOOK-M.

    Wan et al., "MEDA: Dynamic KV Cache Allocation for Efficient Multimodal Long-Context Inference", NAACL 2025,
    arXiv 2502.17599.

    Parameters
    ----------
    merge : str
        ``averaged`` (the paper), ``pivotal`` (what the official code does), ``weighted`` or ``none``.
    entropy : str
        ``cross_modal`` (the paper) or ``causal``: of the whole attention matrix (the official code).
    recent_share : float
        Part of a layer's budget for the last tokens.
    """

    merge: str = "averaged"
    entropy: str = "cross_modal"
    recent_share: float = 0.5

    name = "meda"
    paper = "arXiv 2502.17599"
    varies = "layer"
    merges = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("merge", self.merge, (*MERGE_RULES, NO_MERGE))
        check_choice("entropy", self.entropy, ENTROPIES)
        check_share("recent_share", self.recent_share)

    def observe(self, prefill: LayerPrefill) -> LayerScores:
        queries, keys, scaling = prefill.queries, prefill.keys, prefill.scaling
        if self.entropy == "causal":
            spread, received = entropy_and_sums(queries, keys, scaling)
        else:
            spread = cross_modal_entropy(queries, keys, prefill.visual, scaling)
            received = column_sums(queries, keys, scaling)
        return LayerScores(spread, received, prefill.visual)

    def weights(self, spreads: list[float]) -> Sequence[float]:
        weights: list[float] = softmax(spreads).tolist()
        return weights

    def keep(self, layer: LayerScores, entries: int) -> LayerPlan:
        recent = recent_entries(entries, self.recent_share)
        return merged_plan(text_first(layer.received, layer.visual, entries, recent), self.merge)
