"""Budgets by layer, in proportion to how widely a layer attends (MEDA, VL-Cache)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvcomp_eval.budgets.apportion import apportion

#: No layer keeps less than this part of the prompt (both papers).
LEAST_RATIO = 0.01


def layer_budgets(weights: Sequence[float], mean: int, prompt_length: int, official: bool = False) -> list[int]:
    """Entries per KV head of each layer.

    ``beta_l = clip(w_l / sum(w) * L * mean / N, 0.01, 1)``: arXiv 2502.17599 with the softmax of the entropies as
    weights, arXiv 2410.23317 with the densities.

    Parameters
    ----------
    weights : sequence of float
        One per layer, non-negative.
    mean : int
        Entries per head, mean over the layers.
    official : bool
        Leave it at the clip, which loses what it cuts off.

    Returns
    -------
    list of int
        Sums to ``L * mean`` exactly unless ``official``.
    """
    if official:
        share = np.asarray(weights, dtype=float) / np.sum(weights)
        ratios = np.clip(share * len(weights) * mean / prompt_length, LEAST_RATIO, 1)
        return [max(1, round(ratio * prompt_length)) for ratio in ratios]
    least = min(mean, max(1, int(LEAST_RATIO * prompt_length)))
    return apportion(weights, len(weights) * mean, least, prompt_length, mode="clip")
