"""The common budget convention: entries per KV head and layer, window included."""

from __future__ import annotations

import math


def entries_per_head(prompt_length: int, budget_ratio: float | None, budget_entries: int | None, window: int) -> int:
    """Prompt entries that each KV head may keep.

    A ratio is rounded half up and raised to ``window + 1`` (a window method with less would select
    nothing); an absolute number is taken as given. Neither given means everything.

    Parameters
    ----------
    prompt_length : int
        Real prompt tokens N, padding excluded.

    Returns
    -------
    int in ``1..N``.
    """
    if budget_entries is not None:
        return min(budget_entries, prompt_length)
    if budget_ratio is None:
        return prompt_length
    wanted = math.floor(budget_ratio * prompt_length + 0.5)
    return min(max(wanted, window + 1), prompt_length)


def effective_window(window: int, entries: int, prompt_length: int) -> int:
    """Window that leaves room for at least one selected entry: ``min(w, B - 1, N - 1)``, at least 1."""
    return max(1, min(window, entries - 1, prompt_length - 1))
