"""The oracle: a full cache in which everything that a method did not attend to is masked with -inf.

Nothing is shared with the packed path: keys are concatenated and repeated, attention is plain matmul and
softmax, and the mask comes from a trace of what the compressed run attended to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from kvcomp_eval.attention import AnnouncedLayer, get_backend, switched_attention
from kvcomp_eval.cache import KVCache
from kvcomp_eval.compat import cache_keyword


class ReferenceLayer(AnnouncedLayer):
    """A full layer whose decode steps replay the masks of a trace.

    Parameters
    ----------
    trace : sequence of Tensor [B, Hkv, N], bool
        Per decode step, the prompt positions attended to.
    """

    def __init__(self, trace: Sequence[Tensor]) -> None:
        super().__init__()
        self._trace = iter(trace)
        self._prompt_seen = False

    def attend(
        self,
        attention: Callable[..., tuple[Tensor, Any]],
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        if not self._prompt_seen:
            self._prompt_seen = True
            return attention(module, query, key, value, attention_mask, **kwargs)
        scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
        outputs = []
        for i in range(query.shape[2]):
            seen = key.shape[2] - query.shape[2] + i + 1
            masked = _masked_attention(
                query[:, :, i : i + 1], key[:, :, :seen], value[:, :, :seen], next(self._trace), scaling
            )
            outputs.append(masked)
        return torch.cat(outputs, dim=1), None


def _masked_attention(query: Tensor, key: Tensor, value: Tensor, attended: Tensor, scaling: float) -> Tensor:
    """Eager attention of one token; prompt positions outside ``attended`` [B, Hkv, N] get -inf."""
    group = query.shape[1] // key.shape[1]
    generated = key.shape[2] - attended.shape[2]
    allowed = torch.nn.functional.pad(attended, (0, generated), value=True).repeat_interleave(group, dim=1)
    logits = query @ key.repeat_interleave(group, dim=1).transpose(2, 3) * scaling
    logits = logits.masked_fill(~allowed.unsqueeze(2), float("-inf"))
    return (logits.float().softmax(-1).to(value.dtype) @ value.repeat_interleave(group, dim=1)).transpose(1, 2)


def replay(model: Any, inputs: Mapping[str, Any], traced: KVCache, **generate_kwargs: Any) -> Any:
    """Generate with a full cache, masked step by step as the traced compressed run attended.

    Parameters
    ----------
    model : PreTrainedModel
        Not inside ``attach``.
    inputs : mapping
        What the compressed ``generate`` was given.
    traced : KVCache
        ``session.last_cache`` of ``attach(..., trace=True)``.
    """
    cache = Cache(layers=[ReferenceLayer(layer.trace) for layer in traced.packed_layers])
    with switched_attention(model, get_backend("sdpa").registered_name):
        return model.generate(**inputs, **{cache_keyword(model): cache}, **generate_kwargs)
