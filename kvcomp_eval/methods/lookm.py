"""LOOK-M: text first, and evicted entries are merged into kept ones."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvcomp_eval.methods.base import LayerMethod, LayerPlan, LayerPrefill, check_choice, check_share
from kvcomp_eval.methods.h2o import recent_entries
from kvcomp_eval.scoring.columns import column_sums
from kvcomp_eval.selection import window_positions
from kvcomp_eval.stores.heads import HeadPlan
from kvcomp_eval.stores.merge import MERGE_RULES, Merge

NO_MERGE = "none"


@dataclass(frozen=True)
class LookM(LayerMethod):
    """H2O's scores with text preferred to visual tokens; the evicted entries are merged into the kept ones.

    Wan et al., "LOOK-M: Look-Once Optimization in KV Cache for Efficient Multimodal Long-Context Inference",
    Findings of EMNLP 2024, arXiv 2406.18139.

    Parameters
    ----------
    merge : str
        ``pivotal`` (the official script), ``averaged``, ``weighted``, or ``none``.
    text_prior : bool
        Raise every text token by the head's largest score (eqs. 4-8); off, it is H2O with merging.
    recent_share : float
        Part of the budget for the last tokens.
    official : bool
        The official code: all text is kept, so the budget can be exceeded, and only similar entries are merged
        (not with ``pivotal``).
    """

    merge: str = "pivotal"
    text_prior: bool = True
    recent_share: float = 0.5
    official: bool = False

    name = "lookm"
    paper = "arXiv 2406.18139"
    merges = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("merge", self.merge, (*MERGE_RULES, NO_MERGE))
        check_share("recent_share", self.recent_share)

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        received = column_sums(prefill.queries, prefill.keys, prefill.scaling)
        recent = recent_entries(entries, self.recent_share)
        keeps_all_text = self.official and self.text_prior
        chosen = text_first(received, prefill.visual, entries, recent, self.text_prior, keeps_all_text)
        return merged_plan(chosen, self.merge, filtered=self.official and self.merge != "pivotal")


def text_first(
    received: Tensor, visual: Tensor, entries: int, recent: int, text_prior: bool = True, keep_all_text: bool = False
) -> list[Tensor]:
    """Positions that each KV head keeps: the last ``recent``, then by score with text raised above the rest.

    Parameters
    ----------
    received : Tensor [Hkv, N]
        Attention that each token receives.
    visual : Tensor [N], bool
    entries : int
        Total per head; exceeded only with ``keep_all_text``.
    """
    length = received.shape[1]
    if text_prior:
        received = received + ~visual * received.amax(1, keepdim=True)
    prefix = length - recent
    if keep_all_text:
        entries = max(entries, recent + int((~visual[:prefix]).sum()))
    return [window_positions(scores[:prefix], entries, length, recent) for scores in received]


def merged_plan(kept: list[Tensor], rule: str, filtered: bool = False) -> LayerPlan:
    """Plans that merge what is not kept by ``rule``, or drop it with ``none``."""
    merge = None if rule == NO_MERGE else Merge(rule, filtered)
    return tuple(HeadPlan(positions, merge=merge) for positions in kept)
