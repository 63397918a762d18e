"""Re-selection without a reason: the floor for methods that re-select."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvcomp_eval.stores.retrieval import PooledRetriever, TokenRetrieval
from kvcomp_eval.stores.transfer import make_pool


@dataclass(frozen=True)
class RandomRetrieval(TokenRetrieval):
    """At a share ``rate`` of the steps, random prefix entries replace the ``selected`` ones.

    Parameters
    ----------
    rate : float
    seed : int
        Of this layer and prompt length.
    """

    rate: float
    seed: int

    def build(self, members: Sequence[Any], keys: Tensor, values: Tensor, slots: Any) -> RandomRetriever:
        return RandomRetriever(self, keys, values, slots)


class RandomRetriever(PooledRetriever):
    """Draws on the CPU, so that every device chooses the same entries."""

    def __init__(self, spec: RandomRetrieval, keys: Tensor, values: Tensor, slots: Any) -> None:
        self.spec = spec
        self._generator = torch.Generator().manual_seed(spec.seed)
        self._coin = random.Random(spec.seed)
        self.pools = (make_pool(keys, spec.offload), make_pool(values, spec.offload))
        self._heads, self._device = len(keys), keys.device
        self._steps = self._refreshes = 0
        self._draw(slots)

    def refresh(self, queries: Tensor, scaling: float, slots: Any) -> None:
        self._steps += 1
        if self._coin.random() < self.spec.rate:
            self._refreshes += 1
            self._draw(slots)

    def _draw(self, slots: Any) -> None:
        order = torch.rand(self._heads, self.spec.prefix, generator=self._generator).argsort(dim=1)
        self.chosen = order[:, : self.spec.selected].to(self._device)
        self.fetch(self.chosen, slots)

    def positions(self) -> Tensor:
        return self.chosen

    @property
    def index_bytes(self) -> int:
        return 0

    @property
    def reads_per_step(self) -> float:
        return 2 * self._heads * self.spec.selected * self.refresh_rate

    @property
    def refresh_rate(self) -> float:
        return self._refreshes / max(1, self._steps)

    def reorder(self, source: Tensor) -> None:
        raise ValueError("random_refresh draws for one answer per prompt, so num_beams must be 1.")
