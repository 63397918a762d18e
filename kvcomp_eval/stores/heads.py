"""The packed cache of one layer: KV heads grouped by how many prompt entries they hold."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from kvcomp_eval.selection import other_positions
from kvcomp_eval.stores.merge import Merge
from kvcomp_eval.stores.retrieval import Retrieval, Retriever
from kvcomp_eval.stores.rolling import HeavyHitters, RollingSlots
from kvcomp_eval.stores.slots import Slots

#: Up to so many KV heads (of all samples), heads are grouped only by equal length; above it, padded.
MAX_EXACT_HEADS = 64
#: Padded groups never exceed this ratio of longest to shortest head.
MAX_PADDING = 1.3


@dataclass(frozen=True)
class HeadPlan:
    """What one KV head of one sample keeps of its prompt.

    Parameters
    ----------
    kept : Tensor [k], int64
        Resident prompt positions, ascending, counted from the first real token. For a retrieving head,
        what always stays.
    retrieval : Retrieval, optional
        Slots in front of ``kept`` are filled anew while decoding.
    merge : Merge, optional
        Evicted entries are merged into the kept ones instead of being dropped.
    heavy_hitters : HeavyHitters, optional
        Generated tokens push out kept entries.
    compensated : bool
        One entry more in front: the mean of the evicted ones, weighted as often as there are any (RazorAttention).
    """

    kept: Tensor
    retrieval: Retrieval | None = None
    merge: Merge | None = None
    heavy_hitters: HeavyHitters | None = None
    compensated: bool = False

    @property
    def slots(self) -> int:
        """Prompt entries resident on the device."""
        return (self.retrieval.filled if self.retrieval else 0) + self.compensated + len(self.kept)


@dataclass
class HeadGroup:
    """Heads that are attended to in one call.

    Parameters
    ----------
    rows : slice or Tensor [S]
        Which of the layer's ``batch * num_kv_heads`` heads.
    members : list of int
        The same as plain numbers.
    """

    rows: slice | Tensor
    members: list[int]
    slots: Slots | RollingSlots
    retriever: Retriever | None = None

    def step(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float, asking: Tensor | None) -> Tensor:
        """Append one token and attend; queries and asking [R, G, D], keys and values [R, D] of all R heads."""
        queries = queries[self.rows]
        self.slots.append(keys[self.rows], values[self.rows])
        if self.retriever is None:
            return self.slots.attend(queries, scaling)
        self.retriever.refresh(queries if asking is None else asking[self.rows], scaling, self.slots)
        return self.retriever.attend(queries, scaling, self.slots)


class HeadStore:
    """Packed keys and values of one layer; appends and attends one token at a time.

    Parameters
    ----------
    plans : sequence of HeadPlan
        One per head, sample by sample (``batch * num_kv_heads``).
    keys, values : Tensor [B, Hkv, N, D]
        The prompt's full keys and values; nothing of them is referenced afterwards.
    starts : sequence of int
        Per sample, the number of left-padding tokens.
    reserve : int
        Generated tokens to preallocate room for.
    trace : bool
        Keep the positions, so that :meth:`attended` can be asked (costs memory; for the oracle).
    """

    def __init__(
        self,
        plans: Sequence[HeadPlan],
        keys: Tensor,
        values: Tensor,
        starts: Sequence[int],
        reserve: int,
        trace: bool = False,
    ) -> None:
        batch, num_kv_heads, self._prompt_length, _ = keys.shape
        self._num_kv_heads = num_kv_heads
        self._num_rows = batch * num_kv_heads
        self._head_starts = [start for start in starts for _ in range(num_kv_heads)]
        self._plans = list(plans) if trace else None
        #: Resident prompt entries [B][Hkv].
        self.entries = [
            [plan.slots for plan in plans[row : row + num_kv_heads]] for row in range(0, len(plans), num_kv_heads)
        ]
        flat_keys, flat_values = keys.flatten(0, 1), values.flatten(0, 1)
        self.groups = [
            self._pack(members, [plans[row] for row in members], flat_keys, flat_values, reserve)
            for members in group_heads(plans)
        ]

    def step(
        self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float, asking: Tensor | None = None
    ) -> Tensor:
        """Append one token of every sample and attend to what is kept.

        Parameters
        ----------
        queries : Tensor [B, Hq, 1, D]
        keys, values : Tensor [B, Hkv, 1, D]
        asking : Tensor [B, Hq, 1, D], optional
            Queries by which entries are retrieved; by default those that attend.

        Returns
        -------
        Tensor [B, 1, Hq, D]
        """
        batch, num_heads, _, head_dim = queries.shape
        packed = queries.reshape(self._num_rows, -1, head_dim)
        asked = None if asking is None else asking.reshape(self._num_rows, -1, head_dim)
        new_keys, new_values = keys.reshape(self._num_rows, -1), values.reshape(self._num_rows, -1)
        if len(self.groups) == 1:
            out = self.groups[0].step(packed, new_keys, new_values, scaling, asked)
        else:
            out = torch.empty_like(packed)
            for group in self.groups:
                out[group.rows] = group.step(packed, new_keys, new_values, scaling, asked)
        return out.view(batch, 1, num_heads, head_dim)

    @property
    def kept_entries(self) -> int:
        """Prompt entries resident on the device."""
        return sum(map(sum, self.entries))

    @property
    def reads_per_step(self) -> float:
        """Key and value vectors that retrieval takes from the pools at a step, mean so far."""
        return sum(group.retriever.reads_per_step for group in self.groups if group.retriever)

    def reorder(self, beams: Tensor) -> None:
        """Beam search: sample b continues beam ``beams[b]``, which shares its prompt."""
        heads = torch.arange(self._num_kv_heads, device=beams.device)
        source = (beams[:, None] * self._num_kv_heads + heads).flatten()
        place = torch.empty(self._num_rows, dtype=torch.long, device=beams.device)
        for group in self.groups:
            place[group.rows] = torch.arange(len(group.members), device=beams.device)
        for group in self.groups:
            order = place[source[group.rows]]
            group.slots.reorder_generated(order)
            if group.retriever is not None:
                group.retriever.reorder(order)

    def attended(self) -> Tensor:
        """Positions attended to by the latest step, bool; needs ``trace=True``.

        Returns
        -------
        Tensor [B, Hkv, N], or [B, Hkv, N + generated] where generated tokens can be evicted
        """
        assert self._plans is not None
        device = self.groups[0].slots.keys.device
        mask = torch.zeros(self._num_rows, self._prompt_length, dtype=torch.bool, device=device)
        for group in self.groups:
            if isinstance(group.slots, RollingSlots):
                mask = self._mark_rolling(mask, group.slots, group.members)
                continue
            retrieved = group.retriever.positions() if group.retriever is not None else None
            for place, row in enumerate(group.members):
                start = self._head_starts[row]
                mask[row, self._plans[row].kept + start] = True
                if retrieved is not None:
                    mask[row, retrieved[place] + start] = True
        return mask.view(-1, self._num_kv_heads, mask.shape[1])

    def _mark_rolling(self, mask: Tensor, slots: RollingSlots, members: list[int]) -> Tensor:
        """Set a rolling group's positions; they may lie behind the prompt, where all other heads attend to all."""
        starts = torch.tensor([self._head_starts[row] for row in members], device=mask.device)
        positions = slots.positions + starts[:, None]
        width = max(mask.shape[1], int(positions.max()) + 1)
        mask = F.pad(mask, (0, width - mask.shape[1]), value=True)
        rows = torch.tensor(members, device=mask.device)
        mask[rows, self._prompt_length :] = False
        mask[rows[:, None], positions] = True
        return mask

    def _pack(self, members: list[int], plans: list[HeadPlan], keys: Tensor, values: Tensor, reserve: int) -> HeadGroup:
        width = max(plan.slots for plan in plans)
        slots = _make_slots(plans, width, reserve, keys)
        spans = [slice(self._head_starts[row], None) for row in members]
        for place, (row, plan) in enumerate(zip(members, plans, strict=True)):
            target = slice(width - len(plan.kept), width)
            if plan.merge is not None:
                merged = plan.merge(keys[row, spans[place]], values[row, spans[place]], plan.kept)
                slots.keys[place, target], slots.values[place, target] = merged
                continue
            for source, buffer in ((keys, slots.keys), (values, slots.values)):
                torch.index_select(source[row, spans[place]], 0, plan.kept, out=buffer[place, target])
        if isinstance(slots, Slots) and any(plan.slots != width for plan in plans):
            slots.hide_missing([plan.slots for plan in plans])
        if isinstance(slots, Slots) and plans[0].compensated:
            _compensate(
                slots, plans, [(keys[row, span], values[row, span]) for row, span in zip(members, spans, strict=True)]
            )
        retriever = None
        retrievals = [plan.retrieval for plan in plans if plan.retrieval is not None]
        if retrievals:
            chosen_from = slice(None, retrievals[0].covered)
            flat = list(zip(members, spans, strict=True))
            prefix_keys = torch.stack([keys[row, span][chosen_from] for row, span in flat])
            prefix_values = torch.stack([values[row, span][chosen_from] for row, span in flat])
            retriever = retrievals[0].build(retrievals, prefix_keys, prefix_values, slots)
        return HeadGroup(_row_index(members, keys.device), members, slots, retriever)


def _make_slots(plans: list[HeadPlan], width: int, reserve: int, like: Tensor) -> Slots | RollingSlots:
    """Empty slots of a group; heads that evict while decoding have a constant number of them."""
    rolling = [plan.heavy_hitters for plan in plans if plan.heavy_hitters is not None]
    if not rolling:
        return Slots.allocate(len(plans), width, reserve, like)
    kept = torch.stack([plan.kept for plan in plans])
    received = torch.stack([hitters.received for hitters in rolling])
    return RollingSlots(kept, received, rolling[0].recent, rolling[0].prompt_length, like)


def _compensate(slots: Slots, plans: list[HeadPlan], prompts: list[tuple[Tensor, Tensor]]) -> None:
    """Fill slot 0 of every head with the mean evicted entry, and add the logarithm of their number to its logit.

    RazorAttention (arXiv 2407.15891): ``N exp(q.k)`` in numerator and denominator is ``exp(q.k + log N)``.
    """
    counts = []
    for place, (plan, (keys, values)) in enumerate(zip(plans, prompts, strict=True)):
        evicted = other_positions(plan.kept, len(keys))
        counts.append(len(evicted))
        slots.keys[place, 0] = keys[evicted].float().mean(0)
        slots.values[place, 0] = values[evicted].float().mean(0)
    slots.add_to_logits(0, [math.log(count) for count in counts])


def _row_index(members: list[int], device: torch.device) -> slice | Tensor:
    """A slice where the rows are consecutive (a view, no copy), else their numbers."""
    if members[-1] - members[0] + 1 == len(members):
        return slice(members[0], members[-1] + 1)
    return torch.tensor(members, device=device)


def group_heads(plans: Sequence[HeadPlan]) -> list[list[int]]:
    """Which heads share an attention call: equal lengths, or for many heads padded within 1.3x.

    Retrieving and rolling heads are grouped only with heads of the same shape: their slots are all in use.

    Returns
    -------
    list of list of int
        Row numbers, ascending within a group.
    """
    static: defaultdict[int, list[int]] = defaultdict(list)
    moving: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for row, plan in enumerate(plans):
        if plan.retrieval is not None:
            moving[plan.retrieval, len(plan.kept)].append(row)
        elif plan.compensated:
            moving["compensated", len(plan.kept)].append(row)
        elif plan.heavy_hitters is not None:
            moving[plan.heavy_hitters.prompt_length, plan.heavy_hitters.recent, len(plan.kept)].append(row)
        else:
            static[len(plan.kept)].append(row)
    if len(plans) <= MAX_EXACT_HEADS:
        return [*static.values(), *moving.values()]
    padded: list[list[int]] = []
    shortest = 0
    for length in sorted(static):
        if padded and length <= MAX_PADDING * shortest:
            padded[-1].extend(static[length])
        else:
            padded.append(list(static[length]))
            shortest = length
    return [*map(sorted, padded), *moving.values()]
