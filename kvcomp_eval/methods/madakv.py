"""MadaKV: each head keeps what it needs of text and of images; later layers pay for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvcomp_eval.budgets.apportion import apportion
from kvcomp_eval.budgets.compensated import compensated_budgets
from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, WindowedMethod, check_share
from kvcomp_eval.methods.window import keep_best
from kvcomp_eval.scoring.window import window_scores
from kvcomp_eval.selection import top_positions

_SPENT = "madakv entries spent"
_ROUNDING = 1e-6


@dataclass(frozen=True)
class MadaKV(WindowedMethod):
    """Per head and modality, the fewest tokens that cover a share ``theta`` of the window's attention to it.

    Li et al., "MadaKV: Adaptive Modality-Perception KV Cache Eviction for Efficient Multimodal Long-Context
    Inference", ACL 2025, arXiv 2506.15724. A reconstruction from descriptions of the paper: no code is public,
    and theta, the window (the paper's proxy tokens), the GQA reduction (mean) and what a layer may overspend are not
    known.

    Parameters
    ----------
    theta : float
        Share of each modality's attention to cover.
    reserve : float
        Part of the mean budget that every later head is safe for. With 0 each is left one entry, and the first
        layers take nearly everything.
    """

    theta: float = 0.9
    reserve: float = 0.5

    name = "madakv"
    paper = "arXiv 2506.15724 (re-implementation from description)"
    varies = "layer, head, modality"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.theta <= 1:
            raise ValueError(f"theta={self.theta} must lie in (0, 1].")
        check_share("reserve", self.reserve)

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        length, heads = prefill.length, prefill.num_kv_heads
        window = self.window_for(self.window, length)
        prefix = length - window
        scores = window_scores(prefill.queries, prefill.keys, window, prefill.scaling)[:, :prefix]
        visual = prefill.visual[:prefix]
        demands = torch.stack([demand(scores, visual, self.theta), demand(scores, ~visual, self.theta)], dim=1).tolist()

        mean = entries - window
        spent = prefill.carried.get(_SPENT, 0)
        budgets = compensated_budgets(
            [max(1, sum(asked)) for asked in demands],
            prefill.num_layers * heads * mean - spent,
            prefill.num_layers - prefill.layer - 1,
            prefix,
            min(mean, max(1, int(self.reserve * mean))),
        )
        prefill.carried[_SPENT] = spent + sum(budgets)
        heads_with = zip(scores, demands, budgets, strict=True)
        favoured = torch.stack([favour(head, visual, asked, budget) for head, asked, budget in heads_with])
        return keep_best(favoured, [budget + window for budget in budgets], window)


def demand(scores: Tensor, members: Tensor, theta: float) -> Tensor:
    """Fewest tokens of a modality whose scores sum to ``theta`` of all its scores, per head.

    Parameters
    ----------
    scores : Tensor [Hkv, P]
    members : Tensor [P], bool
        Tokens of the modality.

    Returns
    -------
    Tensor [Hkv], int64; 0 where the modality is absent.
    """
    own = scores * members
    covered = own.sort(dim=1, descending=True).values.cumsum(1)
    missing = covered < (theta - _ROUNDING) * own.sum(1, keepdim=True)
    return (missing.sum(1) + 1).clamp(max=members.sum())


def favour(scores: Tensor, visual: Tensor, asked: list[int], budget: int) -> Tensor:
    """Scores [P] of one head, raised for the best tokens of each modality, as many as it asked for.

    Where the budget is less than asked for, both modalities give up in proportion.
    """
    shares = asked if sum(asked) <= budget else apportion(asked, budget, 0, asked)
    raised = scores.clone()
    for members, count in ((visual, shares[0]), (~visual, shares[1])):
        best = top_positions(scores.masked_fill(~members, -1.0), count)
        raised[best] += 1 + scores.max()
    return raised
