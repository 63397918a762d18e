"""Watch where an uncompressed run attends: for oracles and analyses, not for speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvcomp_eval.stores.retrieval import PooledRetriever, Retrieval


@dataclass(frozen=True)
class AttentionRecord(Retrieval):
    """Nothing is retrieved; all prompt entries stay, and their attention is summed over the steps.

    Parameters
    ----------
    prompt : int
        Prompt tokens N.
    """

    prompt: int

    @property
    def filled(self) -> int:
        return 0

    @property
    def covered(self) -> int:
        return 0

    def build(self, members: Sequence[Any], keys: Tensor, values: Tensor, slots: Any) -> AttentionRecorder:
        return AttentionRecorder(self.prompt, len(members), keys.device)


class AttentionRecorder(PooledRetriever):
    """Sums of attention, and the most attended prompt position of every step.

    Attributes
    ----------
    received : Tensor [S, N], float32
        Softmax mass on each prompt position, mean over the GQA group, summed over the steps.
    mass : list of Tensor [S, N]
        The same, step by step.
    """

    pools = ()

    def __init__(self, prompt: int, heads: int, device: torch.device) -> None:
        self._prompt = prompt
        self.received = torch.zeros(heads, prompt, device=device)
        self.mass: list[Tensor] = []

    def refresh(self, queries: Tensor, scaling: float, slots: Any) -> None:
        keys = slots.keys[:, : slots.length].float()
        weights = torch.matmul(queries.float() * scaling, keys.transpose(1, 2)).softmax(-1)
        self.mass.append(weights[:, :, : self._prompt].mean(1))
        self.received += self.mass[-1]

    def positions(self) -> Tensor:
        return torch.zeros(len(self.received), 0, dtype=torch.long, device=self.received.device)

    @property
    def index_bytes(self) -> int:
        return 0

    @property
    def reads_per_step(self) -> float:
        return 0
