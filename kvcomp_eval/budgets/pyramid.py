"""PyramidKV's schedule: more entries in the lower layers, fewer in the upper ones."""

from __future__ import annotations

import numpy as np

from kvcomp_eval.budgets.apportion import round_to_total


def pyramid_budgets(
    base: int, num_layers: int, beta: int, prompt_length: int, window: int, official: bool = False
) -> list[int]:
    """Prefix entries per KV head of each layer, falling linearly from bottom to top.

    Cai et al., arXiv 2406.02069. The extremes are ``2 * base - base // beta`` and ``base // beta``; where the
    larger exceeds the prefix ``prompt_length - window``, both move so that their mean stays ``base``. Prompts
    shorter than ``2 * base`` get ``base`` everywhere.

    Parameters
    ----------
    base : int
        Mean entries per layer, window excluded.
    beta : int
        Steepness; 1 is uniform.
    official : bool
        The published code's integer step, whose sum exceeds ``num_layers * base`` by up to 42 %.

    Returns
    -------
    list of int
        Sums to ``num_layers * base`` exactly unless ``official``.
    """
    most = prompt_length - window
    if prompt_length < 2 * base or num_layers == 1:
        return [min(base, most)] * num_layers
    low = base // beta
    high = 2 * base - low
    if high >= most:
        high = most
        low = 2 * base - high
    if official:
        step = (high - low) // (num_layers - 1)
        return [high - layer * step for layer in range(num_layers)]
    shares = np.linspace(high, low, num_layers)
    return round_to_total(shares, num_layers * base, np.full(num_layers, float(most)))
