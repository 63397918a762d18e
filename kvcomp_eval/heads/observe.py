"""Greedy decoding with a full cache that notes which image token each head looks at most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from kvcomp_eval.attention import AnnouncedLayer, get_backend, switched_attention
from kvcomp_eval.compat import cache_keyword, text_config


class ObservedLayer(AnnouncedLayer):
    """A full layer; at every forward pass its last query is compared with the keys of the image tokens.

    Parameters
    ----------
    image_positions : Tensor [n], int64
    """

    def __init__(self, image_positions: Tensor) -> None:
        super().__init__()
        self._image_positions = image_positions
        #: Per pass, index of the image token with the largest attention, [Hq].
        self.looked_at: list[Tensor] = []

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
        # The softmax is monotone: the largest logit is the largest attention.
        image_keys = key[0, :, self._image_positions].float()
        last = query[0, :, -1].float().unflatten(0, (key.shape[1], -1))
        self.looked_at.append((last @ image_keys.transpose(1, 2)).argmax(-1).flatten())
        return attention(module, query, key, value, attention_mask, **kwargs)


@torch.inference_mode()
def decode_observed(model: Any, inputs: Mapping[str, Any], max_new_tokens: int) -> tuple[list[int], Tensor]:
    """Answer one prompt greedily.

    Parameters
    ----------
    inputs : mapping
        What the processor returned, batch of one.

    Returns
    -------
    tokens : list of int
        Of the answer, T of them.
    looked_at : Tensor [T, L, Hq]
        At the pass that produced a token, the image token (0 is the first of the prompt) that a query head attended
        to most among the image tokens.
    """
    positions = (inputs["input_ids"][0] == model.config.image_token_id).nonzero()[:, 0]
    layers = [ObservedLayer(positions) for _ in range(text_config(model).num_hidden_layers)]
    with switched_attention(model, get_backend("sdpa").registered_name):
        output = model.generate(
            **inputs,
            **{cache_keyword(model): Cache(layers=list(layers))},
            max_new_tokens=max_new_tokens,
            do_sample=False,
        )
    looked_at = torch.stack([torch.stack(layer.looked_at) for layer in layers], dim=1)
    return output[0, inputs["input_ids"].shape[1] :].tolist(), looked_at.cpu()
