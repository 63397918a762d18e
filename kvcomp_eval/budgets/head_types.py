"""HybridKV's top-down allocation: a share for each head type, then one for each head (Eq. 4-5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvcomp_eval.budgets.apportion import real_shares, round_to_total

PADDINGS = ("nearest", "nearest_linear", "next", "prev", "none")
TOTALS = ("conserve", "literal")
ROUNDINGS = ("exact", "ceil")


@dataclass(frozen=True)
class ChunkGrid:
    """How a dynamic head of a prompt is cut: chunks to retrieve from, and a tail that always stays.

    Parameters
    ----------
    prompt_length : int
    reserved : int
        Last tokens outside every chunk: the window, or 0 when the window may be retrieved like the rest.
    chunk_size : int
    """

    prompt_length: int
    reserved: int
    chunk_size: int

    @property
    def num_chunks(self) -> int:
        return max(0, self.prompt_length - self.reserved) // self.chunk_size

    @property
    def tail(self) -> int:
        """Entries that stay: the reserved ones and what does not fill a chunk."""
        return self.prompt_length - self.num_chunks * self.chunk_size


@dataclass(frozen=True)
class HeadTypeBudgets:
    """Budgets of all KV heads of one prompt, heads numbered layer by layer.

    Parameters
    ----------
    static : tuple of bool
        True for static heads.
    entries : tuple of int
        Prompt entries resident per head.
    chunks : int
        Chunks that each dynamic head retrieves at a step.
    padded : int
        The padded budget P of a dynamic head.
    notes : tuple of str
        Which edge rules were applied.
    """

    static: tuple[bool, ...]
    entries: tuple[int, ...]
    chunks: int = 0
    padded: int = 0
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class HeadTypeRule:
    """Parameters of the allocation; see :class:`kvcomp_eval.methods.hybridkv.HybridKV` for their meaning."""

    r: float = 0.75
    alpha: float = 0.5
    padding: str = "nearest"
    total: str = "conserve"
    rounding: str = "exact"
    literal_r: bool = False

    def allocate(
        self, scores: Sequence[float], static: Sequence[bool], total: int, grid: ChunkGrid, window: int
    ) -> HeadTypeBudgets:
        """Share ``total`` entries among heads.

        Parameters
        ----------
        scores : sequence of float
            Text-centric sparsity per KV head.
        static : sequence of bool
            Per KV head: static, else dynamic.
        total : int
            Entries of all heads together (B_total).
        grid : ChunkGrid
        window : int
            Least entries of a static head.
        """
        num_static = sum(static)
        num_dynamic = len(scores) - num_static
        notes: list[str] = []
        padded, chunks, resident, planned = 0, 0, 0, 0
        if num_dynamic:
            share = self._dynamic_share(total, num_static, num_dynamic, window, notes)
            planned = math.ceil(share * total / len(scores) * num_dynamic - 1e-9)
            room = (total - num_static * window) // num_dynamic
            padded, chunks = self._dynamic_slots(planned / num_dynamic, room, grid, num_static > 0, notes)
            resident = chunks * grid.chunk_size + grid.tail
        spent = num_dynamic * resident if self.total == "conserve" else planned
        static_entries = iter(self._static_entries(scores, static, total - spent, grid.prompt_length, window, notes))
        entries = tuple(next(static_entries) if kept else resident for kept in static)
        return HeadTypeBudgets(tuple(static), entries, chunks, padded, tuple(notes))

    def _dynamic_share(self, total: int, num_static: int, num_dynamic: int, window: int, notes: list[str]) -> float:
        """The share coefficient r of Eq. 4, cut so that static heads keep at least their window."""
        if num_static == 0:
            if self.literal_r:
                return self.r
            notes.append("no static head: r = 1")
            return 1.0
        mean = total / (num_static + num_dynamic)
        most = (total - num_static * window) / (mean * num_dynamic)
        if self.r > most:
            notes.append(f"r cut to {most:.3f}")
        return max(0.0, min(self.r, most))

    def _dynamic_slots(
        self, budget: float, room: int, grid: ChunkGrid, has_static: bool, notes: list[str]
    ) -> tuple[int, int]:
        """Padded budget P of a dynamic head, and the chunks that it retrieves.

        P covers the reserved tail and the chunks. Where it exceeds ``room`` entries it is halved and the static
        heads take the rest. Without static heads nobody would, and below the least power of two that holds tail
        and chunks there is nothing to halve: then the room is filled in single chunks. What does not fill a
        chunk of the prompt stays too and may cost one retrieved chunk.
        """
        smallest = max(8, _power_of_two(max(2 * grid.reserved, 1), "next"))
        padded = max(_power_of_two(max(budget, 1.0), self.padding), smallest)
        limit = room if self.total == "conserve" else grid.prompt_length
        while has_static and padded > smallest and padded > limit:
            padded = max(padded // 2, smallest)
        wanted = min(max(0, padded - grid.reserved) // grid.chunk_size, grid.num_chunks)
        chunks = max(0, min(wanted, (limit - grid.tail) // grid.chunk_size))
        if padded > limit:
            padded = grid.reserved + chunks * grid.chunk_size
            notes.append(f"dynamic budget not padded to a power of two: {chunks} chunks fit")
        return padded, chunks

    def _static_entries(
        self,
        scores: Sequence[float],
        static: Sequence[bool],
        total: int,
        prompt_length: int,
        window: int,
        notes: list[str],
    ) -> list[int]:
        """Eq. 5: a uniform base and a score-proportional part; the sum is ``total`` exactly."""
        weights = np.array([score for score, kept in zip(scores, static, strict=True) if kept])
        count = len(weights)
        if not count:
            return []
        cap = np.full(count, float(prompt_length))
        normalised = weights / weights.sum() if weights.sum() > 0 else np.full(count, 1 / count)
        shares = self.alpha * total / count + (1 - self.alpha) * total * normalised
        if self.rounding == "ceil":
            return [int(min(part, prompt_length)) for part in np.ceil(np.round(shares, 9))]
        total = min(total, count * prompt_length)
        floor = min(window, total // count)
        if shares.min() < floor or shares.max() > prompt_length:
            notes.append("static budgets clamped to [window, prompt length]")
            shares = real_shares(list(shares), total, floor, prompt_length, mode="clip")
        return round_to_total(shares, total, cap)


def _power_of_two(budget: float, rule: str) -> int:
    """Round a budget to a power of two; ``nearest`` is nearest in the exponent."""
    if rule == "none":
        return math.floor(budget)
    exponent = math.log2(budget)
    low, high = 2 ** math.floor(exponent), 2 ** math.ceil(exponent)
    if rule == "next":
        return high
    if rule == "prev":
        return low
    if rule == "nearest":
        return 2 ** math.floor(exponent + 0.5)
    return low if budget - low < high - budget else high
