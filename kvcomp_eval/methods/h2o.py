"""H2O: keep what the whole prompt attended to most."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcomp_eval.methods.base import LayerMethod, LayerPlan, LayerPrefill, check_choice, check_share
from kvcomp_eval.scoring.columns import column_sums
from kvcomp_eval.selection import window_positions
from kvcomp_eval.stores.heads import HeadPlan
from kvcomp_eval.stores.rolling import HeavyHitters

DECODES = ("static", "rolling")


@dataclass(frozen=True)
class H2O(LayerMethod):
    """Recent tokens and heavy hitters: the tokens with the largest sum of attention over all prompt queries.

    Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
    NeurIPS 2023, arXiv 2306.14048. Scores are averaged over the GQA group, so selection is per KV head.

    Parameters
    ----------
    recent_share : float
        Part of the budget for the last tokens; half, as in the paper.
    decode : str
        ``static``: the prompt's choice stays and generated tokens are added, as in every static method here.
        ``rolling``: the paper's form, each generated token evicts one entry, so the cache never grows.
    normalize : bool
        Divide a token's sum by the number of queries that could see it (kvpress's form); the plain sum favours
        early tokens.
    """

    recent_share: float = 0.5
    decode: str = "static"
    normalize: bool = False

    name = "h2o"
    paper = "arXiv 2306.14048"
    decoding = "evict, if decode=rolling"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("recent_share", self.recent_share)
        check_choice("decode", self.decode, DECODES)

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        length = prefill.length
        recent = recent_entries(entries, self.recent_share)
        received = column_sums(prefill.queries, prefill.keys, prefill.scaling)
        scores = received
        if self.normalize:
            scores = received / torch.arange(length, 0, -1, device=received.device)
        plans = []
        for head in range(prefill.num_kv_heads):
            kept = window_positions(scores[head, : length - recent], entries, length, recent)
            rolling = HeavyHitters(received[head, kept], recent, length) if self.decode == "rolling" else None
            plans.append(HeadPlan(kept, heavy_hitters=rolling))
        return tuple(plans)


def recent_entries(entries: int, share: float) -> int:
    """Entries of the budget that go to the last tokens, rounded half up."""
    return int(entries * share + 0.5)
