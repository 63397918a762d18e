"""Preallocated key/value slots of KV heads that hold equally many prompt entries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass
class Slots:
    """Keys and values of S KV heads: prompt slots in front, generated tokens behind, in one buffer.

    Attention over both is one SDPA call on a slice of the buffer. The G query heads of a GQA group are
    packed on the query axis, so keys are never repeated. When generated tokens run out of room their
    part doubles.

    Parameters
    ----------
    keys, values : Tensor [S, capacity, D]
    prompt_slots : int
        Slots in front that belong to the prompt.
    length : int
        Slots in use; ``prompt_slots`` until the first token is generated.
    mask : Tensor [S, 1, capacity], optional
        Bool: False where a head has fewer prompt entries than slots (they are right-aligned). In the keys' dtype:
        added to the logits.
    """

    keys: Tensor
    values: Tensor
    prompt_slots: int
    length: int
    mask: Tensor | None = None

    @classmethod
    def allocate(cls, num_heads: int, prompt_slots: int, reserve: int, like: Tensor) -> Slots:
        """Empty slots with room for ``reserve`` generated tokens; dtype and device of ``like`` [.., D]."""
        shape = (num_heads, prompt_slots + max(1, reserve), like.shape[-1])
        return cls(like.new_empty(shape), like.new_empty(shape), prompt_slots, prompt_slots)

    def hide_missing(self, counts: list[int]) -> None:
        """Mask the leading slots of heads with fewer than ``prompt_slots`` prompt entries."""
        first = self.prompt_slots - torch.tensor(counts, device=self.keys.device)
        columns = torch.arange(self.keys.shape[1], device=self.keys.device)
        hidden = columns < first[:, None]
        # Weight 0 times an uninitialised NaN would still be NaN.
        self.keys[hidden] = 0
        self.values[hidden] = 0
        self.mask = ~hidden.unsqueeze(1)

    def add_to_logits(self, slot: int, amounts: list[float]) -> None:
        """Raise the logits of one slot, by an amount per head."""
        self.mask = self.keys.new_zeros(len(amounts), 1, self.keys.shape[1])
        self.mask[:, 0, slot] = torch.tensor(amounts, dtype=self.keys.dtype, device=self.keys.device)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add one generated token; keys and values [S, D]."""
        if self.length == self.keys.shape[1]:
            self._grow()
        self.keys[:, self.length] = keys
        self.values[:, self.length] = values
        self.length += 1

    def attend(self, queries: Tensor, scaling: float) -> Tensor:
        """Attention of one token's queries [S, G, D] over all slots in use; returns [S, G, D]."""
        used = self.length
        mask = None if self.mask is None else self.mask[None, :, :, :used]
        return F.scaled_dot_product_attention(
            queries.unsqueeze(0),
            self.keys[None, :, :used],
            self.values[None, :, :used],
            attn_mask=mask,
            scale=scaling,
        ).squeeze(0)

    def reorder_generated(self, source: Tensor) -> None:
        """Replace each head's generated tokens by those of head ``source[s]`` (beam search)."""
        tail = slice(self.prompt_slots, self.length)
        self.keys[:, tail] = self.keys[source, tail]
        self.values[:, tail] = self.values[source, tail]

    def _grow(self) -> None:
        extra = max(64, self.keys.shape[1] - self.prompt_slots)
        self.keys = F.pad(self.keys, (0, 0, 0, extra))
        self.values = F.pad(self.values, (0, 0, 0, extra))
        if self.mask is not None:
            self.mask = F.pad(self.mask, (0, extra), value=float(self.mask.dtype == torch.bool))

    @property
    def prompt_bytes(self) -> int:
        """Bytes of the prompt slots, measured on the buffers."""
        return self._bytes() * self.prompt_slots // self.keys.shape[1]

    @property
    def generated_bytes(self) -> int:
        """Bytes allocated for generated tokens, used or not; their part of the mask included."""
        return self._bytes() - self.prompt_bytes + self._all_mask_bytes() - self.mask_bytes

    @property
    def mask_bytes(self) -> int:
        """Bytes of the mask over the prompt slots."""
        return self._all_mask_bytes() * self.prompt_slots // self.keys.shape[1]

    def _all_mask_bytes(self) -> int:
        return 0 if self.mask is None else self.mask.untyped_storage().nbytes()

    def _bytes(self) -> int:
        return self.keys.untyped_storage().nbytes() + self.values.untyped_storage().nbytes()
