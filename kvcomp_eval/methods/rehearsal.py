"""Where heads look over the first decode steps, measured with the full cache before a prompt is compressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvcomp_eval.methods.oracle import Watched
from kvcomp_eval.stores.record import AttentionRecorder

if TYPE_CHECKING:
    from kvcomp_eval.cache import KVCache
    from kvcomp_eval.methods.base import Method


@dataclass(frozen=True)
class Rehearsal:
    """What the full cache was asked for, and what the asking took.

    Parameters
    ----------
    attention : tuple of tuple of Tensor [Hkv, N]
        By layer and sample: share of attention on each prompt entry, mean over the GQA group and the steps.
    costs : dict
        ``steps``, ``seconds`` (prefill included) and ``device_bytes`` of the rehearsal, for the report.
    """

    attention: tuple[tuple[Tensor, ...], ...]
    costs: dict[str, Any]

    @classmethod
    def run(cls, rehearse: Callable[..., KVCache], steps: int) -> Rehearsal:
        """Decode so many tokens of every sample with the full cache; ``rehearse`` as in :meth:`Method.prepared`."""
        watched: Method = Watched()
        cache = rehearse(watched, steps=steps)
        report = cache.report()
        attention = tuple(_mean_attention(cache, layer) for layer in range(len(cache.layers)))
        for layer in cache.packed_layers:
            # Cache and layers refer to each other: without this the full cache would wait for the garbage collector.
            layer.store = None
        costs = {
            "steps": report.generated_tokens,
            "seconds": report.prefill_seconds + report.decode_seconds,
            "device_bytes": report.device_bytes + report.generated_bytes,
        }
        return cls(attention, costs)

    def drift(self, layer: int, sample: int, kept: Sequence[Tensor]) -> Tensor:
        """Share of attention, per KV head [Hkv], that the steps paid to entries which a head does not keep.

        Parameters
        ----------
        kept : sequence of Tensor [k], int64
            Prompt positions per KV head.
        """
        attention = self.attention[layer][sample]
        evicted = torch.ones_like(attention)
        for head, positions in enumerate(kept):
            evicted[head, positions] = 0
        return (attention * evicted).sum(1)


def _mean_attention(cache: KVCache, layer: int) -> tuple[Tensor, ...]:
    """What each sample's heads recorded in one layer, [Hkv, N] each."""
    store = cache.packed_layers[layer].store
    assert store is not None
    heads = sum(len(group.members) for group in store.groups) // cache.prompt.batch_size
    by_sample: dict[int, Tensor] = {}
    for group in store.groups:
        recorder = group.retriever
        assert isinstance(recorder, AttentionRecorder)
        # Samples of equal length share a group, each with all its heads.
        parts = (recorder.received / max(1, len(recorder.mass))).split(heads)
        by_sample |= {row // heads: part for row, part in zip(group.members[::heads], parts, strict=True)}
    return tuple(by_sample[sample] for sample in range(cache.prompt.batch_size))
