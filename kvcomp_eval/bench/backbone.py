"""The random text backbone that is timed: large enough for its arithmetic to count, small enough for a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Shape:
    """Size of the backbone; head dim is ``hidden // query_heads``."""

    layers: int = 8
    hidden: int = 1024
    intermediate: int = 2816
    query_heads: int = 16
    kv_heads: int = 4
    vocabulary: int = 1024

    @property
    def head_dim(self) -> int:
        return self.hidden // self.query_heads


MID_SIZE = Shape()
TINY = Shape(layers=2, hidden=64, intermediate=128, query_heads=4, kv_heads=2, vocabulary=64)


def build_backbone(shape: Shape, dtype: torch.dtype, max_length: int, seed: int = 0) -> Any:
    """A ``Qwen2ForCausalLM`` with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.query_heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=max_length,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model: Any = Qwen2ForCausalLM(config)
    return model.to(dtype).eval()


def weight_bytes(model: Any) -> int:
    """Bytes of weights that every token reads: all but the input embedding."""
    total = sum(weight.untyped_storage().nbytes() for weight in model.parameters())
    return total - model.get_input_embeddings().weight.untyped_storage().nbytes()
