"""Token-wise retrieval by a few columns of skewed keys (InfiniGen)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kvcomp_eval.stores.retrieval import PooledRetriever, TokenRetrieval
from kvcomp_eval.stores.transfer import make_pool


@dataclass(frozen=True)
class PartialKeyRetrieval(TokenRetrieval):
    """How a head retrieves its ``selected`` prefix entries at every step.

    Parameters
    ----------
    skew : Tensor [D, d']
        Orthonormal columns onto which queries and keys are projected; see :func:`partial_skew`.
    """

    skew: Tensor = field(compare=False)

    def build(self, members: Sequence[Any], keys: Tensor, values: Tensor, slots: Any) -> PartialKeyRetriever:
        skew = torch.stack([member.skew for member in members])
        return PartialKeyRetriever(self.selected, skew, keys, values, self.offload)


class PartialKeyRetriever(PooledRetriever):
    """Refills the first slots of S heads with the tokens whose partial keys the queries ask for most.

    Parameters
    ----------
    selected : int
    skew : Tensor [S, D, d']
    keys, values : Tensor [S, prefix, D]
    offload : bool
    """

    def __init__(self, selected: int, skew: Tensor, keys: Tensor, values: Tensor, offload: bool) -> None:
        self._selected = selected
        self._skew = skew.to(keys.dtype)
        partial = torch.matmul(keys.float(), self._skew.float()).transpose(1, 2)
        self._partial = partial.to(keys.dtype).contiguous()
        self.pools = (make_pool(keys, offload), make_pool(values, offload))
        self.chosen = torch.zeros(len(keys), selected, dtype=torch.long, device=keys.device)

    def refresh(self, queries: Tensor, scaling: float, slots: Any) -> None:
        short = torch.matmul(queries.float() * scaling, self._skew.float())
        weights = torch.matmul(short, self._partial.float()).softmax(-1).mean(1)
        self.chosen = weights.topk(self._selected, dim=-1, sorted=False).indices
        self.fetch(self.chosen, slots)

    def positions(self) -> Tensor:
        return self.chosen

    @property
    def reads_per_step(self) -> float:
        return 2 * self.chosen.numel()

    @property
    def index_bytes(self) -> int:
        return sum(part.untyped_storage().nbytes() for part in (self._partial, self._skew))


def partial_skew(queries: Tensor, dims: int) -> Tensor:
    """The columns of the orthogonal skew that carry most of the queries.

    The skew A holds the right singular vectors of a KV head's queries, so ``(q A).(k A) = q.k``; of its columns those
    with the largest ``sum |q A|`` stay.

    Parameters
    ----------
    queries : Tensor [Hkv, n, D]
        Post-RoPE, those of a group stacked.
    dims : int
        d'.

    Returns
    -------
    Tensor [Hkv, D, d'], float32
    """
    vectors = queries.float()
    skew = torch.linalg.eigh(torch.matmul(vectors.transpose(1, 2), vectors)).eigenvectors
    columns = torch.matmul(vectors, skew).abs().sum(1).topk(dims, dim=-1).indices
    return skew.gather(2, columns.unsqueeze(1).expand(-1, skew.shape[1], -1))
