"""Chunk-wise retrieval: an index of chunks on the device, their keys and values in a pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kvcomp_eval.stores.retrieval import ChunkRetrieval, PooledRetriever, chunk_positions
from kvcomp_eval.stores.transfer import make_pool

INDEXES = ("mean", "minmax", "cuboid")
GROUP_RULES = ("max_softmax", "mean_softmax", "mean_logit")


@dataclass(frozen=True)
class ChunkSpec(ChunkRetrieval):
    """How the entries of a head are retrieved.

    Parameters
    ----------
    index : str
        ``mean``: mean key (HybridKV, ShadowKV); ``minmax``: bounding box (Quest); ``cuboid``: box of
        centre plus and minus the mean absolute deviation (ArkVale).
    group_rule : str
        One score per KV head from its G query heads: ``max_softmax`` (ShadowKV), ``mean_softmax``,
        or ``mean_logit`` (plain inner product with the mean query).
    offload : bool
        Keep keys and values of the chunks on the host.
    correct_below : float, optional
        FreeKV: chunks are chosen by the previous token's queries (so that they can be fetched ahead of time), and by
        the current ones only for KV heads where the cosine of the two is below this. None: always the current.
    """

    index: str = "mean"
    group_rule: str = "max_softmax"
    offload: bool = True
    correct_below: float | None = None

    def build(self, members: Sequence[Any], keys: Tensor, values: Tensor, slots: Any) -> ChunkRetriever:
        return ChunkRetriever(self, keys, values)


class ChunkRetriever(PooledRetriever):
    """Refills the first slots of S heads with the chunks that the current query asks for.

    Parameters
    ----------
    spec : ChunkSpec
    keys, values : Tensor [S, num_chunks * chunk_size, D]
        Post-RoPE keys and values of the chunked part of the prompt.
    """

    def __init__(self, spec: ChunkSpec, keys: Tensor, values: Tensor) -> None:
        self.spec = spec
        chunked = keys.unflatten(1, (spec.num_chunks, spec.chunk_size))
        self._index = build_index(chunked, spec.index)
        self.pools = (
            make_pool(chunked.flatten(2), spec.offload),
            make_pool(values.reshape(chunked.shape).flatten(2), spec.offload),
        )
        self.chosen: Tensor | None = None
        self._last_queries: Tensor | None = None

    def refresh(self, queries: Tensor, scaling: float, slots: Any) -> None:
        """Choose chunks for ``queries`` [S, G, D] and copy them into the first slots."""
        if self.spec.correct_below is not None:
            queries = self._stale_where_similar(queries, self.spec.correct_below)
        scores = chunk_scores(queries, self._index, scaling, self.spec.group_rule)
        self.chosen = scores.topk(self.spec.retrieved, dim=-1, sorted=False).indices
        self.fetch(self.chosen, slots, self.spec.chunk_size)

    def _stale_where_similar(self, queries: Tensor, threshold: float) -> Tensor:
        """The last token's queries for KV heads whose queries barely turned, the current ones for the others."""
        last, self._last_queries = self._last_queries, queries
        if last is None:
            return queries
        similarity = F.cosine_similarity(queries.float(), last.float(), dim=-1).mean(1)
        return torch.where((similarity < threshold)[:, None, None], queries, last)

    def reorder(self, source: Tensor) -> None:
        if self._last_queries is not None:
            self._last_queries = self._last_queries[source]

    def positions(self) -> Tensor:
        assert self.chosen is not None
        return chunk_positions(self.chosen, self.spec.chunk_size)

    @property
    def reads_per_step(self) -> float:
        heads = self._index[0].shape[0]
        return 2 * heads * self.spec.filled

    @property
    def index_bytes(self) -> int:
        return sum(part.untyped_storage().nbytes() for part in self._index)


def build_index(chunked_keys: Tensor, kind: str) -> tuple[Tensor, ...]:
    """Digest of each chunk, ready for :func:`chunk_scores`.

    Parameters
    ----------
    chunked_keys : Tensor [S, C, chunk, D]

    Returns
    -------
    tuple of Tensor [S, D, C]
        The mean, or the upper and lower corner of a box, in the dtype of the keys.
    """
    keys = chunked_keys.float()
    if kind == "mean":
        corners: tuple[Tensor, ...] = (keys.mean(2),)
    elif kind == "minmax":
        corners = (keys.amax(2), keys.amin(2))
    elif kind == "cuboid":
        centre = (keys.amax(2) + keys.amin(2)) / 2
        radius = (keys - centre.unsqueeze(2)).abs().mean(2)
        corners = (centre + radius, centre - radius)
    else:
        raise ValueError(f"index={kind!r} is not known; use one of {', '.join(INDEXES)}.")
    return tuple(corner.transpose(1, 2).to(chunked_keys.dtype).contiguous() for corner in corners)


def chunk_scores(queries: Tensor, index: tuple[Tensor, ...], scaling: float, group_rule: str) -> Tensor:
    """Score every chunk for one token.

    Parameters
    ----------
    queries : Tensor [S, G, D]
    index : tuple of Tensor [S, D, C]
        One digest: inner product with it. Two: the box bound ``sum_i max(q_i * upper_i, q_i * lower_i)``.

    Returns
    -------
    Tensor [S, C], float32
    """
    # In float32: scores in bf16 tie by the dozen, and bf16 products of this shape are slow on CPUs.
    queries, corners = queries.float(), [corner.float() for corner in index]
    if len(corners) == 1:
        logits = torch.matmul(queries, corners[0])
    else:
        upper, lower = corners
        logits = torch.matmul(queries.clamp(min=0), upper) + torch.matmul(queries.clamp(max=0), lower)
    if group_rule == "mean_logit":
        return logits.mean(1)
    weights = (logits * scaling).softmax(dim=-1)
    return weights.amax(1) if group_rule == "max_softmax" else weights.mean(1)
