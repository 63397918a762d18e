"""Slots of constant number: each new token pushes out the entry that was attended to least (H2O)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class HeavyHitters:
    """What a KV head's eviction while decoding starts from.

    Parameters
    ----------
    received : Tensor [k], float32
        Attention that each kept entry has received so far.
    recent : int
        Last tokens that are never evicted.
    prompt_length : int
        Position of the first generated token, counted from the first real one.
    """

    received: Tensor
    recent: int
    prompt_length: int


class RollingSlots:
    """Keys and values of S heads, k entries each, and one slot for the token at hand.

    A token joins with the attention that it receives itself; then the entry with the least attention among those
    older than the last ``recent`` leaves, for good (H2O, arXiv 2306.14048, algorithm 1).

    Parameters
    ----------
    kept : Tensor [S, k], int64
        Prompt positions.
    received : Tensor [S, k], float32
    recent : int
    prompt_length : int
    like : Tensor [.., D]
        Dtype and device.
    """

    def __init__(self, kept: Tensor, received: Tensor, recent: int, prompt_length: int, like: Tensor) -> None:
        heads, self.prompt_slots = kept.shape
        shape = (heads, self.prompt_slots + 1, like.shape[-1])
        self.keys, self.values = like.new_empty(shape), like.new_empty(shape)
        self.positions = torch.cat([kept, kept.new_zeros(heads, 1)], dim=1)
        self._received = torch.cat([received, received.new_zeros(heads, 1)], dim=1)
        self._vacant = kept.new_full((heads, 1), self.prompt_slots)
        self._recent = recent
        self._next = prompt_length

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Put one token's keys and values [S, D] into the vacant slots."""
        wide = self._vacant.unsqueeze(-1).expand(-1, -1, keys.shape[-1])
        self.keys.scatter_(1, wide, keys.unsqueeze(1))
        self.values.scatter_(1, wide, values.unsqueeze(1))
        self.positions.scatter_(1, self._vacant, self._next)
        self._received.scatter_(1, self._vacant, 0.0)
        self._next += 1

    def attend(self, queries: Tensor, scaling: float) -> Tensor:
        """Attention of one token's queries [S, G, D] over all slots; then choose the slot that becomes vacant."""
        logits = torch.matmul(queries, self.keys.transpose(1, 2)) * scaling
        weights = logits.softmax(-1, dtype=torch.float32)
        self._received += weights.mean(1)
        is_safe = self.positions >= self._next - self._recent
        self._vacant = self._received.masked_fill(is_safe, float("inf")).argmin(1, keepdim=True)
        return torch.matmul(weights.to(self.values.dtype), self.values)

    def reorder_generated(self, source: Tensor) -> None:
        """Head s continues as head ``source[s]`` (beam search)."""
        for name in ("keys", "values", "positions", "_received", "_vacant"):
            setattr(self, name, getattr(self, name)[source])

    @property
    def prompt_bytes(self) -> int:
        """Bytes of k entries a head; they hold generated tokens more and more."""
        return self._bytes() * self.prompt_slots // (self.prompt_slots + 1)

    @property
    def generated_bytes(self) -> int:
        """Bytes of the slot for the token at hand."""
        return self._bytes() - self.prompt_bytes

    @property
    def mask_bytes(self) -> int:
        """Bytes of the bookkeeping: attention received and positions."""
        return self._received.untyped_storage().nbytes() + self.positions.untyped_storage().nbytes()

    def _bytes(self) -> int:
        return self.keys.untyped_storage().nbytes() + self.values.untyped_storage().nbytes()
