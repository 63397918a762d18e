"""DuoAttention: heads that reach far back stay whole; a training-free stand-in for its learned gates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvcomp_eval.inputs import Rotation
from kvcomp_eval.methods.base import LayerPrefill, check_at_least
from kvcomp_eval.methods.headwise import HeadObservation, HeadwiseMethod


@dataclass(frozen=True)
class DuoAttention(HeadwiseMethod):
    """Heads whose attention reaches far back stay whole, judged by the mean query and key of the prompt ("Duo-otf").

    Xiao et al., "DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads", ICLR 2025,
    arXiv 2410.10819. The paper trains a gate per head on synthetic passkeys; no gates exist for multimodal models. This
    is the training-free stand-in: the mean pre-RoPE query and key, put at ``distance`` text positions; a head's score
    is the area under the last query's cumulative attention. The paper deploys 64 sinks and 256 recent tokens, which
    at the prompts and budgets of an image leave nothing to whole heads.

    Parameters
    ----------
    distance : int
        Positions of the test.
    """

    distance: int = 500

    name = "duoattention"
    paper = "arXiv 2410.10819"
    needs_inputs = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("distance", self.distance, 2)

    def observe(self, prefill: LayerPrefill) -> HeadObservation:
        assert prefill.inputs is not None
        undo = prefill.inputs.rotation.undo
        query, key = (undo(vectors[None])[0].mean(1) for vectors in (prefill.queries, prefill.keys))
        areas = attention_area(query, key, prefill.inputs.text_rotation(self.distance), prefill.scaling)
        return HeadObservation(areas.unflatten(0, (prefill.num_kv_heads, -1)).mean(1)[None], prefill.length)

    def ranked(self, scores: Tensor) -> list[int]:
        return scores[0].argsort(descending=True, stable=True).tolist()


def attention_area(query: Tensor, key: Tensor, rotation: Rotation, scaling: float) -> Tensor:
    """Area under the cumulative attention of the last of n tokens that all have the same query and key.

    Near 1: the head looks far back; near 0: at its neighbours.

    Parameters
    ----------
    query : Tensor [Hq, D]
        Before rotation, as the key.
    key : Tensor [Hkv, D]
    rotation : Rotation
        Of n successive tokens.

    Returns
    -------
    Tensor [Hq]
    """
    tokens = rotation.cos.shape[1]
    keys = rotation.turn(key[None, :, None].expand(-1, -1, tokens, -1))[0]
    queries = rotation.turn(query[None, :, None].expand(-1, -1, tokens, -1))[0, :, -1]
    logits = torch.einsum("hgd,hnd->hgn", queries.unflatten(0, (len(key), -1)), keys) * scaling
    return logits.softmax(-1).cumsum(-1).mean(-1).flatten()
