"""The attention and mask functions registered with transformers.

transformers calls the registered attention for every layer with post-RoPE queries and keys. A
:class:`~kvcomp_eval.cache.KVCacheLayer` puts itself into the call's keyword arguments (``LAYER_KEY``), so the
function finds its cache without hooks, patches or globals. Calls without a cache layer (``use_cache=False``)
are plain attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.cache_utils import DynamicLayer
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import (
    AttentionMaskInterface,
    eager_mask,
    flash_attention_mask,
    sdpa_mask,
)

from kvcomp_eval.compat import set_text_attention, text_config

LAYER_KEY = "kvcomp_layer"
AttentionFunction = Callable[..., tuple[Tensor, Any]]


class AnnouncedLayer(DynamicLayer):
    """A full cache layer that puts itself into the attention call, whose ``attend`` then runs in its place."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        kwargs: dict[str, Any] | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        assert kwargs is not None
        kwargs[LAYER_KEY] = self
        return super().update(key_states, value_states)


@contextmanager
def switched_attention(model: Any, name: str) -> Iterator[None]:
    """Run the text decoder on the attention that transformers knows by this name, inside the block."""
    previous = text_config(model)._attn_implementation
    set_text_attention(model, name)
    try:
        yield
    finally:
        set_text_attention(model, previous)


@dataclass(frozen=True)
class PrefillBackend:
    """A prompt-attention kernel and the mask that it wants, under one registered name.

    The name must not contain "flash", "sdpa" or "flex_attention": transformers looks for these substrings.
    """

    registered_name: str
    attention: AttentionFunction
    mask: Callable[..., Tensor | None]


def _eager_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Softmax attention in plain operations, fp32 softmax; for comparison, not for speed."""
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    logits = torch.matmul(query, key.transpose(2, 3)) * (scaling or query.shape[-1] ** -0.5)
    if attention_mask is not None:
        logits = logits + attention_mask
    weights = F.softmax(logits, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


BACKENDS = {
    "sdpa": PrefillBackend("kvcomp", sdpa_attention_forward, sdpa_mask),
    "eager": PrefillBackend("kvcomp_eager", _eager_attention, eager_mask),
    "flash_attention_2": PrefillBackend("kvcomp_fa2", flash_attention_forward, flash_attention_mask),
}


def get_backend(name: str) -> PrefillBackend:
    """Backend by its transformers name; ValueError lists the known ones."""
    if name not in BACKENDS:
        raise ValueError(f"prefill attention {name!r} is not known; use one of {', '.join(BACKENDS)}.")
    return BACKENDS[name]


def _attention_function(backend: PrefillBackend) -> AttentionFunction:
    def compressed_attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        layer = kwargs.pop(LAYER_KEY, None)
        if attention_mask is not None and attention_mask.ndim == 2 and backend.mask is not flash_attention_mask:
            attention_mask = attention_mask[:, None, None, :].bool()
        if layer is None:
            return backend.attention(module, query, key, value, attention_mask, **kwargs)
        return layer.attend(backend.attention, module, query, key, value, attention_mask, **kwargs)

    return compressed_attention


def _mask_function(backend: PrefillBackend) -> Callable[..., Tensor | None]:
    def logical_mask(
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: int = 0,
        kv_offset: int = 0,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor | None:
        # A decode step over a cache of ours: each layer owns the validity of its slots, so no 4-D mask
        # is built. The conditions keep other caches (static, sliding) on the ordinary path.
        is_decode = q_length == 1 and isinstance(q_offset, int) and kv_length == q_offset + 1
        if is_decode and kwargs.get("local_size") is None:
            return attention_mask
        return backend.mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            attention_mask=attention_mask,
            **kwargs,
        )

    return logical_mask


for _backend in BACKENDS.values():
    AttentionInterface.register(_backend.registered_name, _attention_function(_backend))
    AttentionMaskInterface.register(_backend.registered_name, _mask_function(_backend))
