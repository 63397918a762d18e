"""Attention over a random sample of the prompt, drawn by hashing and weighted by its probability (MagicPIG)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kvcomp_eval.stores.retrieval import Retrieval, Retriever

#: As the reference code: keeps the logarithm of a vanishing probability finite.
_LEAST = 1e-4


@dataclass(frozen=True)
class SampledAttention(Retrieval):
    """How the G query heads of a KV head sample its prefix.

    Parameters
    ----------
    prefix : int
        Prompt tokens to sample from, behind ``sinks`` that are resident.
    sinks : int
    tables, bits : int
        L hash tables of K bits.
    offload : bool
        Keys, values and tables on the host.
    counts_planes : bool
        The hyperplanes, which all layers of a prompt share, are counted here.
    planes : Tensor [D, L * K]
        Normals of the hyperplanes whose sides are the bits.
    """

    prefix: int
    sinks: int
    tables: int
    bits: int
    offload: bool
    counts_planes: bool
    planes: Tensor = field(compare=False)

    @property
    def filled(self) -> int:
        return 0

    @property
    def covered(self) -> int:
        return self.sinks + self.prefix

    def build(self, members: Sequence[Any], keys: Tensor, values: Tensor, slots: Any) -> SamplingRetriever:
        return SamplingRetriever(self, keys[:, self.sinks :], values[:, self.sinks :])


class SamplingRetriever(Retriever):
    """Attention over all resident entries and a sample of the others, in one softmax.

    Chen et al., arXiv 2410.16179. Keys are hashed after their mean was taken out, queries as they are. Token j is in
    the sample of a query head where at least two of the tables agree, which has the probability u_j; its logit is
    lowered by ``log u_j``, so that the softmax estimates the one over all tokens.

    Parameters
    ----------
    spec : SampledAttention
    keys, values : Tensor [S, prefix, D]
    """

    def __init__(self, spec: SampledAttention, keys: Tensor, values: Tensor) -> None:
        self._spec = spec
        self._keys, self._values = keys, values
        self._mean = keys.float().mean(1, keepdim=True).to(keys.dtype)
        centred = keys.float() - self._mean.float()
        self._lengths = centred.norm(dim=-1)
        self._codes = hash_codes(centred, spec.planes, spec.bits).transpose(1, 2).contiguous()
        self._sampled = torch.zeros((), device=keys.device)
        self._steps = 0

    def refresh(self, queries: Tensor, scaling: float, slots: Any) -> None:
        """Nothing is chosen ahead of the attention."""

    def attend(self, queries: Tensor, scaling: float, slots: Any) -> Tensor:
        spec, asked = self._spec, queries.float()
        inner = torch.matmul(asked, self._keys.float().transpose(1, 2))
        centred = inner - torch.matmul(asked, self._mean.float().transpose(1, 2))
        cosine = centred / (asked.norm(dim=-1, keepdim=True) * self._lengths.unsqueeze(1)).clamp(min=1e-20)
        drawn = agreeing_tables(hash_codes(asked, spec.planes, spec.bits), self._codes) >= 2
        weighted = inner * scaling - (sampling_probability(cosine, spec.bits, spec.tables) + _LEAST).log()
        resident = torch.matmul(asked, slots.keys[:, : slots.length].float().transpose(1, 2)) * scaling
        logits = torch.cat([resident, weighted.masked_fill(~drawn, float("-inf"))], dim=-1)
        values = torch.cat([slots.values[:, : slots.length], self._values], dim=1)
        self._sampled = self._sampled + drawn.sum()
        self._steps += 1
        return torch.matmul(logits.softmax(-1), values.float()).to(queries.dtype)

    def positions(self) -> Tensor:
        """None: every query head has a sample of its own, which no mask of a KV head can express."""
        return torch.empty(len(self._keys), 0, dtype=torch.long, device=self._keys.device)

    @property
    def reads_per_step(self) -> float:
        """Keys and values of all query heads' samples; reads the device."""
        return 2 * float(self._sampled) / max(1, self._steps)

    @property
    def index_bytes(self) -> int:
        return self._mean.nbytes + (self._spec.planes.nbytes if self._spec.counts_planes else 0)

    @property
    def device_bytes(self) -> int:
        return 0 if self._spec.offload else self._pool_bytes

    @property
    def host_bytes(self) -> int:
        return self._pool_bytes if self._spec.offload else 0

    @property
    def _pool_bytes(self) -> int:
        parts = (self._keys, self._values, self._codes, self._lengths)
        return sum(part.nbytes for part in parts)


def hash_codes(vectors: Tensor, planes: Tensor, bits: int) -> Tensor:
    """SimHash codes [.., L] of vectors [.., D], int16 up to 15 bits, else int32: the sides of K planes per table."""
    sides = (torch.matmul(vectors, planes) > 0).unflatten(-1, (-1, bits))
    powers = 2 ** torch.arange(bits, device=planes.device, dtype=torch.int32)
    return (sides * powers).sum(-1, dtype=torch.int16 if bits < 16 else torch.int32)


def agreeing_tables(asked: Tensor, codes: Tensor) -> Tensor:
    """In how many of L tables queries [S, G, L] share the bucket of each key [S, L, Np]; [S, G, Np].

    Table by table: one comparison of all would need L times the memory, and takes eight times as long.
    """
    count = torch.zeros(*asked.shape[:2], codes.shape[2], dtype=torch.int16, device=codes.device)
    for own, keys in zip(asked.unbind(2), codes.unbind(1), strict=True):
        count += own.unsqueeze(2) == keys.unsqueeze(1)
    return count


def sampling_probability(cosine: Tensor, bits: int, tables: int) -> Tensor:
    """Probability that at least two of L tables agree, for vectors of this cosine."""
    agree = (1 - cosine.clamp(-1, 1).acos() / torch.pi) ** bits
    return 1 - (1 - agree) ** tables - tables * agree * (1 - agree) ** (tables - 1)
