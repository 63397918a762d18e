"""Budgets of methods that keep some heads whole and give the others a short memory."""

from __future__ import annotations

from collections.abc import Sequence


def full_head_budgets(ranked: Sequence[int], length: int, total: int, short: int) -> list[int]:
    """Entries of every head, by head number; they sum to ``total``.

    A share f of the heads is whole where ``f * N + (1 - f) * short`` is the mean budget; what is left, less than one
    more whole head takes, goes to the others. A total below ``short`` a head leaves no whole one.

    Parameters
    ----------
    ranked : sequence of int
        Head numbers, those to keep whole first.
    length : int
        Prompt tokens N.
    total : int
        At least one a head, at most N.
    short : int
        Entries of a head that is not whole.
    """
    heads = len(ranked)
    short = min(short, total // heads)
    whole = heads if total == heads * length else (total - heads * short) // (length - short)
    budgets = [length] * heads
    others = ranked[whole:]
    for place, head in enumerate(others):
        share, extra = divmod(total - whole * length, len(others))
        budgets[head] = share + (place < extra)
    return budgets
