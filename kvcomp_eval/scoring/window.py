"""Attention of the observation window: the last prompt queries over the whole prompt."""

from __future__ import annotations

import torch
from torch import Tensor


def window_attention(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Causal softmax attention of one KV head's window rows over all prompt keys.

    Parameters
    ----------
    queries : Tensor [G, w, D]
        Post-RoPE queries of the last ``w`` prompt tokens, for the G query heads of the group.
    keys : Tensor [N, D]
        Post-RoPE keys of the whole prompt.
    scaling : float
        Logit scale, usually ``D ** -0.5``.

    Returns
    -------
    Tensor [G, w, N], float32
        Rows sum to 1; the window's own causal triangle is applied.
    """
    window = queries.shape[1]
    logits = torch.matmul(queries.float() * scaling, keys.float().T)
    future = torch.ones(window, window, dtype=torch.bool, device=logits.device).triu(1)
    logits[:, :, -window:].masked_fill_(future, float("-inf"))
    return logits.softmax(dim=-1)


def window_scores(queries: Tensor, keys: Tensor, window: int, scaling: float) -> Tensor:
    """Mean attention that the last ``window`` queries pay to each prompt token, averaged over the GQA group.

    SnapKV (arXiv 2404.14469) before pooling; HybridKV Eq. 6-7. Streams over KV heads, so that at most
    ``G * window * N`` floats exist at a time.

    Parameters
    ----------
    queries : Tensor [Hq, N, D]
    keys : Tensor [Hkv, N, D]

    Returns
    -------
    Tensor [Hkv, N], float32
    """
    num_kv_heads = keys.shape[0]
    grouped = queries[:, queries.shape[1] - window :].unflatten(0, (num_kv_heads, -1))
    return torch.stack(
        [window_attention(grouped[head], keys[head], scaling).mean(dim=(0, 1)) for head in range(num_kv_heads)]
    )
