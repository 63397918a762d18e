"""Selections that know the answer: bounds for methods that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvcomp_eval.methods.base import LayerMethod, LayerPlan, LayerPrefill, Method, WindowedMethod
from kvcomp_eval.methods.window import keep_best
from kvcomp_eval.stores.heads import HeadPlan
from kvcomp_eval.stores.record import AttentionRecord, AttentionRecorder

if TYPE_CHECKING:
    from kvcomp_eval.cache import KVCache


@dataclass(frozen=True)
class Watched(LayerMethod):
    """The full cache, with its decode-time attention recorded (see :mod:`kvcomp_eval.stores.record`)."""

    name = "watched"
    paper = "-"

    def observe(self, prefill: LayerPrefill) -> LayerPlan:
        every = torch.arange(prefill.length, device=prefill.keys.device)
        return (HeadPlan(every, AttentionRecord(prefill.length)),) * prefill.num_kv_heads

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        return self.observe(prefill)


@dataclass(frozen=True)
class PrefillOracle(WindowedMethod):
    """The prompt entries that the uncompressed answer attended to most, chosen once.

    The upper reference of one-shot selection in "Rate-Controlled Refresh": each prompt is answered twice, first with
    the full cache to learn the scores, then with what they keep. One prompt at a time.
    """

    name = "prefill_oracle"
    paper = "Rate-Controlled Refresh (oracle)"
    kind = "reference"

    def prepared(self, rehearse: Callable[[Method], KVCache]) -> Method:
        """This oracle with the scores of the prompt at hand."""
        cache = rehearse(Watched())
        if cache.prompt.batch_size > 1:
            raise ValueError(
                f"prefill_oracle answers one prompt at a time, not {cache.prompt.batch_size}; use batch_size=1."
            )
        scores = tuple(recorder(cache, layer).received for layer in range(len(cache.layers)))
        return Informed(self.budget_ratio, self.budget_entries, self.window, scores)

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        raise RuntimeError("prefill_oracle has to see the full answer first; use model.generate() inside attach().")


@dataclass(frozen=True)
class Informed(PrefillOracle):
    """The oracle once it knows, per layer, what each prompt entry received: [Hkv, N] each."""

    scores: tuple[Tensor, ...] = field(default=(), repr=False, compare=False)

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        window = self.window_for(self.window, prefill.length)
        scores = self.scores[prefill.layer][:, : prefill.length - window]
        return keep_best(scores, [entries] * prefill.num_kv_heads, window)


def recorder(cache: KVCache, layer: int) -> AttentionRecorder:
    """What the `Watched` method recorded in one layer."""
    store = cache.packed_layers[layer].store
    assert store is not None
    (group,) = store.groups
    assert isinstance(group.retriever, AttentionRecorder)
    return group.retriever
