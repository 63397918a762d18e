"""What it takes to choose again, at a decode step, which prompt entries a head attends to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

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
        """Bytes on the device of what finds entries."""

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

    @property
    def device_bytes(self) -> int:
        return sum(pool.device_bytes for pool in self.pools)

    @property
    def host_bytes(self) -> int:
        return sum(pool.host_bytes for pool in self.pools)


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
