"""InfiniGen: fetch what the next layer will ask for, guessed from this layer's input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvcomp_eval.inputs import AttentionInputs
from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, check_share
from kvcomp_eval.methods.retrieving import RetrievingMethod
from kvcomp_eval.stores.heads import HeadPlan
from kvcomp_eval.stores.infinigen import PartialKeyRetrieval, partial_skew


@dataclass(frozen=True)
class InfiniGen(RetrievingMethod):
    """Tokens by partial keys and by queries that the layer's own projection makes of the layer before's input.

    Lee et al., "InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache
    Management", OSDI 2024, arXiv 2406.19707. Every KV head fetches the same number of tokens (the paper: those within
    alpha of the maximum); the skew comes from the prompt's own queries, one per KV head; the first layer, which has
    none before it, asks with its own queries. The official code keeps ``dense_layers=2``.

    Parameters
    ----------
    partial : float
        Share of the columns of keys that the index holds; 0.25 is 32 of 128.
    speculate : bool
        False: ask with the layer's own queries, for the price of the guess.
    """

    partial: float = 0.25
    speculate: bool = True

    name = "infinigen"
    paper = "arXiv 2406.19707"
    decoding = "retrieve tokens"
    needs_inputs = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("partial", self.partial)

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        window = self.window_for(self.window, prefill.length)
        prefix, dim = prefill.length - window, prefill.keys.shape[-1]
        queries = prefill.queries.unflatten(0, (prefill.num_kv_heads, -1)).flatten(1, 2)
        skews = partial_skew(queries, max(1, round(self.partial * dim)))
        return tuple(
            HeadPlan(
                kept=torch.arange(prefix, prefill.length, device=skew.device),
                retrieval=PartialKeyRetrieval(entries - window, prefix, self.offload, skew),
            )
            for skew in skews
        )

    def asking(self, previous: AttentionInputs | None, current: AttentionInputs) -> Tensor | None:
        if previous is None or not self.speculate:
            return None
        return previous.queries_of(current.module)
