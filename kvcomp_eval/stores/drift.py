"""Re-selection by drift: the attention that a step would pay to what was evicted (RCR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from kvcomp_eval.stores.controller import RateController
from kvcomp_eval.stores.retrieval import PooledRetriever, TokenRetrieval
from kvcomp_eval.stores.transfer import make_pool


class DriftProbe(Protocol):
    """Told about one sample's first selection of a layer [Hkv, c], and about every step of it."""

    def start(self, layer: int, chosen: Tensor) -> None: ...

    def __call__(self, layer: int, drift: Tensor, tau: Tensor, refreshed: Tensor, chosen: Tensor) -> None: ...


@dataclass(frozen=True)
class DriftRetrieval(TokenRetrieval):
    """How a head re-selects its ``selected`` prefix entries.

    Parameters
    ----------
    candidates : int
        Entries whose keys are fetched and scored exactly, before ``selected`` of them are kept.
    rank : int
        Right singular vectors of the detector; 0 scores every prefix key exactly.
    centred : bool
        Take the mean key out of the detector and add its logit back exactly.
    per_head : bool
        Trigger each KV head by its own drift instead of the layer's mean.
    branching : bool
        Skip the work of a step in which nothing refreshes; the host waits to know it.
    num_kv_heads : int
    layer : int
    initial : Tensor [selected], int64
        Prefix positions to start with.
    controller : RateController
        Of the sample.
    probe : DriftProbe, optional
        Told about every step of the sample.
    """

    candidates: int
    rank: int
    centred: bool
    per_head: bool
    branching: bool
    num_kv_heads: int
    layer: int
    initial: Tensor = field(compare=False)
    controller: RateController = field(compare=False)
    probe: DriftProbe | None = field(compare=False, default=None)

    def build(self, members: Sequence[Any], keys: Tensor, values: Tensor, slots: Any) -> DriftRetriever:
        controllers = [member.controller for member in members[:: self.num_kv_heads]]
        if len(set(map(id, controllers))) < len(controllers):
            raise ValueError(
                "Rate-controlled refresh keeps one threshold per prompt, so num_beams and num_return_sequences "
                "must be 1."
            )
        chosen = torch.stack([member.initial for member in members])
        probes = [member.probe for member in members[:: self.num_kv_heads] if member.probe is not None]
        return DriftRetriever(self, controllers, chosen, keys, values, slots, probes)


class DriftRetriever(PooledRetriever):
    """Measures drift at every step, and swaps in a new selection where it exceeds the sample's threshold.

    Drift is the softmax mass on evicted prefix tokens, whose logits the detector approximates in the space of the
    keys' leading right singular vectors; kept tokens have exact logits. The new selection is the best of the
    detector's candidates after exact scoring. Both are computed at every step and merged under the trigger with
    ``torch.where``, so the host never waits.
    """

    def __init__(
        self,
        spec: DriftRetrieval,
        controllers: list[RateController],
        chosen: Tensor,
        keys: Tensor,
        values: Tensor,
        slots: Any,
        probes: Sequence[DriftProbe] = (),
    ) -> None:
        self.spec = spec
        self.chosen = chosen
        self._probes = probes
        self._controllers = controllers
        self._detector = Detector.of(keys, spec.rank, spec.centred)
        self.pools = (make_pool(keys, spec.offload), make_pool(values, spec.offload))
        self.fetch(chosen, slots)
        for probe, heads in zip(probes, chosen.split(spec.num_kv_heads), strict=False):
            probe.start(spec.layer, heads)

    def refresh(self, queries: Tensor, scaling: float, slots: Any) -> None:
        spec, count = self.spec, self.spec.selected
        queries = queries.float() * scaling
        resident = torch.matmul(queries, slots.keys[:, : slots.length].float().transpose(1, 2))
        logits = self._detector.logits(queries)
        logits.scatter_(2, self.chosen.unsqueeze(1).expand(-1, queries.shape[1], -1), resident[:, :, :count])
        prefix = PrefixAttention.of(logits, log_sum_exp(resident[:, :, count:]))
        drift = (prefix.mass.sum(1) - prefix.mass.gather(1, self.chosen).sum(1)).unflatten(0, (-1, spec.num_kv_heads))
        threshold = torch.stack([controller.threshold for controller in self._controllers])
        measured = drift if spec.per_head else drift.mean(1, keepdim=True).expand_as(drift)
        triggered = measured > threshold.unsqueeze(1)
        refreshed = triggered.float().mean(1)
        for controller, share in zip(self._controllers, refreshed.unbind(), strict=True):
            controller.observe(share)
        if not spec.branching or bool(triggered.any()):
            self._reselect(queries, prefix, triggered.flatten(), slots)
        if self._probes:
            samples = zip(drift.mean(1), threshold, refreshed, self.chosen.split(spec.num_kv_heads), strict=True)
            for probe, figures in zip(self._probes, samples, strict=True):
                probe(spec.layer, *figures)

    def _reselect(self, queries: Tensor, prefix: PrefixAttention, triggered: Tensor, slots: Any) -> None:
        """Choose anew and merge where triggered [S]."""
        spec = self.spec
        candidates = prefix.mass.topk(spec.candidates, dim=1).indices
        key_pool, value_pool = self.pools
        keys = slots.keys.new_empty(*candidates.shape, slots.keys.shape[-1])
        key_pool.fetch(candidates, keys)
        rescored = prefix.rescored(candidates, torch.matmul(queries, keys.float().transpose(1, 2)))
        best = rescored.topk(spec.selected, dim=1).indices
        chosen = candidates.gather(1, best)
        values = slots.values.new_empty(*chosen.shape, slots.values.shape[-1])
        value_pool.fetch(chosen, values)
        best_keys = keys.gather(1, best.unsqueeze(-1).expand_as(values))
        where = triggered[:, None, None]
        front = slice(None, spec.selected)
        slots.keys[:, front] = torch.where(where, best_keys, slots.keys[:, front])
        slots.values[:, front] = torch.where(where, values, slots.values[:, front])
        self.chosen = torch.where(triggered[:, None], chosen, self.chosen)

    def positions(self) -> Tensor:
        return self.chosen

    @property
    def index_bytes(self) -> int:
        return self._detector.bytes

    @property
    def reads_per_step(self) -> float:
        keys = self.spec.candidates if self.spec.rank else self.spec.prefix
        rates = sum(controller.rate for controller in self._controllers)
        # Exact scoring reads every key at every step, refreshed or not.
        refreshes = rates if self.spec.rank else len(self._controllers)
        return self.spec.num_kv_heads * (keys * refreshes + self.spec.selected * rates)

    @property
    def refresh_rate(self) -> float:
        return sum(controller.rate for controller in self._controllers) / len(self._controllers)

    def reorder(self, source: Tensor) -> None:
        raise ValueError("Rate-controlled refresh keeps one threshold per prompt, so num_beams must be 1.")


@dataclass(frozen=True)
class PrefixAttention:
    """Attention of one step to the prefix, by one exponential per logit: a long prefix makes those the step's cost.

    Parameters
    ----------
    weights : Tensor [S, G, Np]
        Exponentials of the logits minus ``peak``. :meth:`rescored` overwrites them.
    peak, others : Tensor [S, G, 1]
        Largest logit of the prefix, and log-sum-exp of the logits of all other tokens.
    mass : Tensor [S, Np]
        Softmax mass among all tokens, mean over the GQA group.
    """

    weights: Tensor
    peak: Tensor
    others: Tensor
    mass: Tensor

    @classmethod
    def of(cls, logits: Tensor, others: Tensor) -> PrefixAttention:
        """From the prefix's logits [S, G, Np], which it overwrites: another tensor of that size would cost as much."""
        peak = logits.amax(-1, keepdim=True)
        weights = logits.sub_(peak).exp_()
        normaliser = torch.logaddexp(peak + weights.sum(-1, keepdim=True).log(), others)
        scale = (peak - normaliser).exp().transpose(1, 2) / weights.shape[1]
        return cls(weights, peak, others, torch.matmul(scale, weights).squeeze(1))

    def rescored(self, candidates: Tensor, logits: Tensor) -> Tensor:
        """Mass of candidates [S, c] under other logits [S, G, c] for them, mean over the GQA group."""
        rest = self.weights.scatter_(2, candidates.unsqueeze(1).expand_as(logits), 0.0).sum(-1, keepdim=True)
        every = torch.cat([logits, rest.log() + self.peak, self.others], dim=-1)
        return every.softmax(-1)[..., : logits.shape[-1]].mean(1)


def log_sum_exp(values: Tensor) -> Tensor:
    """``values.logsumexp(-1, keepdim=True)`` by one fused kernel: torch's own runs a dozen small ones."""
    first = values[..., :1]
    return first - values.log_softmax(-1)[..., :1]


@dataclass(frozen=True)
class Detector:
    """Logits of all prefix keys, approximate: ``(V^T q) . (V^T k)`` with the top right singular vectors V.

    Parameters
    ----------
    projected : Tensor [S, r, Np]
        Projected keys; without a basis the keys themselves, shared with the pool, for exact logits.
    basis : Tensor [S, D, r], optional
    mean : Tensor [S, D, 1], optional
        Mean key, whose logit is exact (centred detector).
    """

    projected: Tensor
    basis: Tensor | None = None
    mean: Tensor | None = None

    @classmethod
    def of(cls, keys: Tensor, rank: int, centred: bool = False) -> Detector:
        """Detector of keys [S, Np, D]; rank 0 is exact."""
        if rank == 0:
            return cls(keys.transpose(1, 2))
        vectors = keys.float()
        mean = vectors.mean(1, keepdim=True) if centred else None
        if mean is not None:
            vectors = vectors - mean
        # Eigenvectors of the Gram matrix, ascending: the same subspace as an SVD of the keys, and cheaper.
        gram = torch.matmul(vectors.transpose(1, 2), vectors)
        basis = torch.linalg.eigh(gram).eigenvectors[:, :, -rank:].contiguous()
        projected = torch.matmul(vectors, basis).transpose(1, 2).to(keys.dtype).contiguous()
        return cls(projected, basis.to(keys.dtype), None if mean is None else mean.transpose(1, 2).to(keys.dtype))

    def logits(self, queries: Tensor) -> Tensor:
        """Logits [S, G, Np] of scaled queries [S, G, D], float32."""
        short = queries if self.basis is None else torch.matmul(queries, self.basis.float())
        inner = torch.matmul(short, self.projected.float())
        return inner if self.mean is None else inner + torch.matmul(queries, self.mean.float())

    @property
    def bytes(self) -> int:
        """Bytes beyond the pool."""
        own = () if self.basis is None else (self.projected, self.basis, self.mean)
        return sum(part.untyped_storage().nbytes() for part in own if part is not None)
