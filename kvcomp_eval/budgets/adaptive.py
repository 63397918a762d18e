"""AdaKV's allocation: heads of a layer share its budget by where the best scores lie."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvcomp_eval.budgets.apportion import round_to_total


def adaptive_budgets(
    scores: Tensor, base: int, floor: float, normalize: bool = False, official: bool = False
) -> list[int]:
    """Prefix entries of each KV head of one layer.

    Feng et al., arXiv 2407.11550. Of all heads' scores together the best ``Hkv * base`` are counted per head;
    every head is safe for the share ``floor`` of the mean (the paper's 1 - alpha).

    Parameters
    ----------
    scores : Tensor [Hkv, P]
    base : int
        Mean entries per head, window excluded.
    floor : float
        1 is uniform (SnapKV), 0 purely by score.
    normalize : bool
        Scale each head's scores by the share of its mass that its own top ``base`` hold.
    official : bool
        The published rounding, whose sum drifts by a few entries.

    Returns
    -------
    list of int
        Sums to ``Hkv * base`` exactly unless ``official``.
    """
    heads, prefix = scores.shape
    if base >= prefix:
        return [prefix] * heads
    if normalize:
        scores = scores * (scores.topk(base, dim=-1).values.sum(-1) / scores.sum(-1))[:, None]
    best = torch.sort(scores.flatten(), descending=True, stable=True).indices[: heads * base]
    counts = torch.bincount(best // prefix, minlength=heads).tolist()
    if official:
        return [min(prefix, round(count * (1 - floor) + int(base * floor))) for count in counts]
    shares = np.array([floor * base + (1 - floor) * count for count in counts])
    return round_to_total(shares, heads * base, np.full(heads, float(prefix)))
