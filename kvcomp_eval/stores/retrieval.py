"""What it takes to choose again, at a decode step, which prompt entries a head attends to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvcomp_eval.stores.transfer import RowPool


class Retriever(ABC):
    """Refills the first slots of S heads during decoding."""

    @abstractmethod
    def refresh(self, queries: Tensor, scaling: float, slots: Any) -> None:
        """Serve one step: queries [S, G, D]; ``slots`` already hold the token at hand."""

    def attend(self, queries: Tensor, scaling: float, slots: Any) -> Tensor:
        """Attention of the step that was served, [S, G, D]."""
        output: Tensor = slots.attend(queries, scaling)
        return output

    @abstractmethod
    def positions(self) -> Tensor:
        """Prompt positions in the first slots, [S, m], counted from the first real token (for the oracle)."""

    @property
    @abstractmethod
    def index_bytes(self) -> int:
        """Bytes on the device of what finds entries, or rebuilds them."""

    @property
    @abstractmethod
    def device_bytes(self) -> int:
        """Bytes of the pools themselves where they are not offloaded."""

    @property
    @abstractmethod
    def host_bytes(self) -> int:
        """Bytes of the pools in host memory."""

    @property
    @abstractmethod
    def reads_per_step(self) -> float:
        """Key and value vectors that a step takes from the pools, over all S heads, mean so far."""

    @property
    def refresh_rate(self) -> float | None:
        """Share of steps that chose anew, where a method decides about it."""
        return None

    def reorder(self, source: Tensor) -> None:
        """Head s continues as head ``source[s]`` (beam search); where each step starts anew, there is nothing to do."""
        return


class PooledRetriever(Retriever):
    """A retriever whose entries wait in ``pools``."""

    pools: tuple[RowPool, ...]

    def fetch(self, rows: Tensor, slots: Any, tokens: int = 1) -> None:
        """Copy rows [S, m], each of so many tokens, from the pools of keys and values into the first slots."""
        for pool, buffer in zip(self.pools, (slots.keys, slots.values), strict=True):
            front = buffer[:, : rows.shape[1] * tokens]
            pool.fetch(rows, front.view(*rows.shape, tokens * buffer.shape[-1]))

    @property
    def device_bytes(self) -> int:
        return sum(pool.device_bytes for pool in self.pools)

    @property
    def host_bytes(self) -> int:
        return sum(pool.host_bytes for pool in self.pools)


@dataclass(frozen=True)
class Retrieval(ABC):
    """How a head retrieves; equal ones share a retriever. Implementations are frozen dataclasses."""

    @property
    @abstractmethod
    def filled(self) -> int:
        """Slots in front that the retriever fills."""

    @property
    @abstractmethod
    def covered(self) -> int:
        """Tokens at the start of the prompt to choose from."""

    @abstractmethod
    def build(self, members: Sequence[Any], keys: Tensor, values: Tensor, slots: Any) -> Retriever:
        """Make the retriever of S heads.

        Parameters
        ----------
        members : sequence of Retrieval
            Of each head, equal to this one.
        keys, values : Tensor [S, covered, D]
        slots : Slots
            Of the same heads; what a retriever wants to find there at the first step it puts there.
        """


@dataclass(frozen=True)
class TokenRetrieval(Retrieval):
    """Single tokens of the prefix.

    Parameters
    ----------
    selected : int
        Entries that a head holds of the prefix (c).
    prefix : int
        Prompt tokens in front of the window, to choose from (Np).
    offload : bool
        Prefix keys and values on the host.
    """

    selected: int
    prefix: int
    offload: bool

    @property
    def filled(self) -> int:
        return self.selected

    @property
    def covered(self) -> int:
        return self.prefix


@dataclass(frozen=True)
class ChunkRetrieval(Retrieval):
    """Chunks of successive tokens.

    Parameters
    ----------
    num_chunks : int
        Chunks to choose from; they cover the prompt's first ``num_chunks * chunk_size`` tokens.
    retrieved : int
        Chunks attended to at a step.
    chunk_size : int
    """

    num_chunks: int
    retrieved: int
    chunk_size: int

    @property
    def filled(self) -> int:
        return self.retrieved * self.chunk_size

    @property
    def covered(self) -> int:
        return self.num_chunks * self.chunk_size


def chunk_positions(chunks: Tensor, chunk_size: int) -> Tensor:
    """Tokens [.., m * chunk_size] of chunks [.., m]."""
    inside = torch.arange(chunk_size, device=chunks.device)
    return (chunks.unsqueeze(-1) * chunk_size + inside).flatten(-2)
