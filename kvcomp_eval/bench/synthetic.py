"""Random prompt tensors with the structure that methods react to, so that no 32k prefill has to run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvcomp_eval.bench.backbone import Shape
from kvcomp_eval.prompt import Prompt

#: Text behind the image: the queries that HybridKV classifies heads by.
TEXT_AFTER_IMAGE = 128
_TEXT_BEFORE_IMAGE = 16
#: Logits of a diffuse head have standard deviation 1 (top 5 % hold about 0.26 of the mass), of a peaked one 5
#: (about 0.99): below and above HybridKV's threshold of 0.9.
_PEAKED_SCALE = 5.0


@dataclass(frozen=True)
class LayerTensors:
    """One layer's prompt: post-RoPE queries [1, Hq, N, D], keys, values [1, Hkv, N, D]; its input [1, N, hidden]."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    hidden: Tensor


def image_prompt(length: int) -> Prompt:
    """One unpadded prompt: a little text, an image, then 128 text tokens (half of a prompt shorter than 256)."""
    after = min(TEXT_AFTER_IMAGE, length // 2)
    visual = torch.ones(1, length, dtype=torch.bool)
    visual[:, : min(_TEXT_BEFORE_IMAGE, length // 4)] = False
    visual[:, length - after :] = False
    return Prompt(visual=visual, starts=(0,))


def layer_tensors(shape: Shape, length: int, dtype: torch.dtype, layer: int, seed: int = 0) -> LayerTensors:
    """Standard normal tensors; half of the KV heads, drawn anew in each layer, have peaked attention."""
    generator = torch.Generator().manual_seed(seed * 1000 + layer)

    def normal(heads: int) -> Tensor:
        return torch.randn(1, heads, length, shape.head_dim, generator=generator).to(dtype)

    queries, keys, values = normal(shape.query_heads), normal(shape.kv_heads), normal(shape.kv_heads)
    peaked = torch.randperm(shape.kv_heads, generator=generator)[: shape.kv_heads // 2]
    queries.unflatten(1, (shape.kv_heads, -1))[:, peaked] *= _PEAKED_SCALE
    hidden = torch.randn(1, length, shape.hidden, generator=generator).to(dtype)
    return LayerTensors(queries, keys, values, hidden)
