"""Exact apportioning: real-valued shares to integers that sum to the total."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MODES = ("plus", "clip")
_FRACTION_DECIMALS = 9
#: A weight this far below the largest counts as none; dividing by it would overflow.
_NEGLIGIBLE = 1e-15
_TOLERANCE = 1e-12


def apportion(
    weights: Sequence[float],
    total: int,
    lower: float | Sequence[float] = 0,
    upper: float | Sequence[float] = np.inf,
    mode: str = "plus",
) -> list[int]:
    """Split ``total`` entries in proportion to ``weights`` within bounds; the parts sum to it exactly.

    Parameters
    ----------
    weights : sequence of float
        Non-negative.
    total : int
    lower, upper : float or sequence of float
        Integer bounds of each part (``upper`` may be infinite).
    mode : str
        ``plus``: ``x = lower + t * w`` cut at ``upper``; ``clip``: ``x = clip(t * w, lower, upper)``. The
        level ``t`` is the one at which the parts sum to the total.

    Returns
    -------
    list of int
        Floor plus largest remainder (ties: lower index), never above ``upper``.

    Raises
    ------
    ValueError
        Negative weights, an unknown mode, or a total outside ``[sum(lower), sum(upper)]``.
    """
    shares = real_shares(weights, total, lower, upper, mode)
    cap = np.broadcast_to(np.asarray(upper, dtype=float), shares.shape)
    return round_to_total(shares, total, cap)


def real_shares(
    weights: Sequence[float],
    total: int,
    lower: float | Sequence[float] = 0,
    upper: float | Sequence[float] = np.inf,
    mode: str = "plus",
) -> np.ndarray:
    """The real-valued parts behind :func:`apportion`, [n] float64, summing to ``total``."""
    w = np.asarray(weights, dtype=float)
    lo = np.broadcast_to(np.asarray(lower, dtype=float), w.shape)
    hi = np.broadcast_to(np.asarray(upper, dtype=float), w.shape)
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not known; use one of {', '.join(MODES)}.")
    if not np.isfinite(w).all() or (w < 0).any():
        raise ValueError("weights must be finite and non-negative.")
    if not lo.sum() <= total <= hi.sum():
        raise ValueError(f"total={total} does not fit between the bounds, which sum to {lo.sum():g} and {hi.sum():g}.")
    w = w / max(w.max(initial=0), np.finfo(float).tiny)
    w[w < _NEGLIGIBLE] = 0
    return _plus(w, float(total), lo, hi) if mode == "plus" else _clip(w, float(total), lo, hi)


def round_to_total(shares: np.ndarray, total: int, upper: np.ndarray) -> list[int]:
    """Floor the shares and hand the missing units to the largest fractional parts (ties: lower index)."""
    floors = np.floor(np.round(shares, _FRACTION_DECIMALS))
    missing = int(total - floors.sum())
    order = np.argsort(-np.round(shares - floors, _FRACTION_DECIMALS), kind="stable")
    while missing > 0:
        open_parts = [i for i in order if floors[i] < upper[i]][:missing]
        floors[open_parts] += 1
        missing -= len(open_parts)
    return [int(part) for part in floors]


def _plus(w: np.ndarray, total: float, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    shares, is_open = lo.copy(), hi > lo
    while True:
        spare = total - lo[is_open].sum() - hi[~is_open].sum()
        shares = np.where(is_open, lo, hi)
        if not is_open.any():
            return shares
        # Only members without weight are left: share the rest evenly among them.
        pull = w if w[is_open].sum() > 0 else np.ones_like(w)
        shares = shares + np.where(is_open, spare * pull / pull[is_open].sum(), 0.0)
        exceeded = is_open & (shares > hi)
        if not exceeded.any():
            return shares
        is_open &= ~exceeded


def _clip(w: np.ndarray, total: float, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    """The level is monotone in the total, so the bounds that bind are found by walking the breakpoints."""
    positive = w > 0
    if not positive.any():
        return _plus(np.ones_like(w), total, lo, hi)
    breakpoints = np.unique(np.concatenate([lo[positive] / w[positive], hi[positive] / w[positive]]))
    breakpoints = breakpoints[np.isfinite(breakpoints)]

    def at(level: float) -> np.ndarray:
        return np.clip(level * w, lo, hi)

    below = max((b for b in breakpoints if at(b).sum() <= total), default=0.0)
    base = at(below)
    spare = total - base.sum()
    # The tolerance absorbs the rounding of (bound / w) * w.
    free = positive & (below * w >= lo * (1 - _TOLERANCE)) & (below * w < hi * (1 - _TOLERANCE))
    if spare <= 0:
        return base
    if free.any():
        return base + np.where(free, spare * w / w[free].sum(), 0.0)
    return base + _plus(np.ones_like(w), spare, np.zeros_like(w), hi - base)
