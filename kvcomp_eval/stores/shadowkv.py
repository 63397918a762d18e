"""Chunk-wise retrieval of values; keys are rebuilt from a low-rank form that stays on the device (ShadowKV)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kvcomp_eval.inputs import Rotation
from kvcomp_eval.stores.chunks import build_index, chunk_scores
from kvcomp_eval.stores.retrieval import ChunkRetrieval, PooledRetriever, chunk_positions
from kvcomp_eval.stores.transfer import make_pool


@dataclass(frozen=True)
class LowRankRetrieval(ChunkRetrieval):
    """How a head retrieves.

    Parameters
    ----------
    rank : int
        Of the keys of all KV heads side by side.
    num_kv_heads : int
    offload : bool
        Values on the host.
    counts_rotation : bool
        The rotation, which all layers of a prompt share, is counted here.
    rotation : Rotation
        Of the covered tokens of the sample.
    candidates : Tensor [c], int64
        Chunks to choose from; the others (outliers) are resident.
    """

    rank: int
    num_kv_heads: int
    offload: bool
    counts_rotation: bool
    rotation: Rotation = field(compare=False)
    candidates: Tensor = field(compare=False)

    def build(self, members: Sequence[Any], keys: Tensor, values: Tensor, slots: Any) -> LowRankRetriever:
        return LowRankRetriever(members, keys, values)


class LowRankRetriever(PooledRetriever):
    """Refills the first slots of S heads with the chunks whose mean key the current queries ask for.

    Parameters
    ----------
    members : sequence of LowRankRetrieval
        Of each head; all KV heads of a sample follow each other.
    keys, values : Tensor [S, covered, D]
        Post-RoPE keys, and values.
    """

    def __init__(self, members: Sequence[LowRankRetrieval], keys: Tensor, values: Tensor) -> None:
        spec = members[0]
        self._chunk_size, self._retrieved = spec.chunk_size, spec.retrieved
        self._counts_rotation, self._shared_heads = spec.counts_rotation, spec.num_kv_heads
        self._rotations = [member.rotation for member in members[:: spec.num_kv_heads]]
        self._keys = [
            LowRankKeys.of(rotation.undo(sample[None])[0], spec.rank, keys.dtype)
            for rotation, sample in zip(self._rotations, keys.split(spec.num_kv_heads), strict=True)
        ]
        chunked = keys.unflatten(1, (spec.num_chunks, spec.chunk_size))
        self._candidates = torch.stack([member.candidates for member in members])
        places = self._candidates[:, :, None, None].expand(-1, -1, *chunked.shape[2:])
        self._landmarks = build_index(chunked.gather(1, places), "mean")
        self.pools = (make_pool(values.reshape(chunked.shape).flatten(2), spec.offload),)
        self.chosen = self._candidates[:, : spec.retrieved]

    def refresh(self, queries: Tensor, scaling: float, slots: Any) -> None:
        scores = chunk_scores(queries, self._landmarks, scaling, "max_softmax")
        self.chosen = self._candidates.gather(1, scores.topk(self._retrieved, dim=-1, sorted=False).indices)
        positions = self.positions()
        front = slice(None, positions.shape[1])
        heads, width = len(scores), self._chunk_size * slots.values.shape[-1]
        self.pools[0].fetch(self.chosen, slots.values[:, front].view(heads, self._retrieved, width))
        samples = zip(
            self._keys,
            self._rotations,
            positions.split(self._shared_heads),
            slots.keys.split(self._shared_heads),
            strict=True,
        )
        for low_rank, rotation, rows, buffer in samples:
            rebuilt = rotation.at(rows).turn(low_rank.rebuild(rows).unsqueeze(1))
            buffer[:, front] = rebuilt.squeeze(1).to(buffer.dtype)

    def positions(self) -> Tensor:
        return chunk_positions(self.chosen, self._chunk_size)

    @property
    def reads_per_step(self) -> float:
        """Values only."""
        return self.chosen.numel() * self._chunk_size

    @property
    def index_bytes(self) -> int:
        rotations = {id(rotation): rotation.bytes for rotation in self._rotations} if self._counts_rotation else {}
        rebuilding = sum(rotations.values()) + sum(keys.bytes for keys in self._keys)
        return self._landmarks[0].untyped_storage().nbytes() + rebuilding


@dataclass(frozen=True)
class LowRankKeys:
    """Pre-RoPE keys of all KV heads of a sample side by side, ``[N, Hkv * D] ~ left @ right``.

    Parameters
    ----------
    left : Tensor [N, R]
    right : Tensor [Hkv, R, D]
    """

    left: Tensor
    right: Tensor

    @classmethod
    def of(cls, keys: Tensor, rank: int, dtype: torch.dtype) -> LowRankKeys:
        """Best approximation of rank R of keys [Hkv, N, D], float32; kept in ``dtype``."""
        joint = keys.transpose(0, 1).flatten(1)
        # Right singular vectors of the joint keys, by the smaller problem of their Gram matrix.
        basis = torch.linalg.eigh(joint.T @ joint).eigenvectors[:, -rank:]
        right = basis.T.unflatten(1, (keys.shape[0], -1)).transpose(0, 1)
        return cls((joint @ basis).to(dtype), right.to(dtype).contiguous())

    def rebuild(self, rows: Tensor) -> Tensor:
        """Keys [Hkv, m, D] of tokens ``rows`` [Hkv, m], float32."""
        return torch.matmul(self.left[rows].float(), self.right.float())

    @property
    def bytes(self) -> int:
        return self.left.untyped_storage().nbytes() + self.right.untyped_storage().nbytes()


def outlier_chunks(keys: Tensor, chunk_size: int, count: int) -> Tensor:
    """Chunks that their mean key stands for worst: the lowest cosine of a key with it.

    Parameters
    ----------
    keys : Tensor [Hkv, chunks * chunk_size, D]
        Post-RoPE.

    Returns
    -------
    Tensor [Hkv, count], int64, ascending
    """
    chunked = keys.float().unflatten(1, (-1, chunk_size))
    worst = F.cosine_similarity(chunked, chunked.mean(2, keepdim=True), dim=-1).amin(-1)
    return worst.topk(count, dim=-1, largest=False).indices.sort(-1).values
