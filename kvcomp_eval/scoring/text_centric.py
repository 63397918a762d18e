"""Text-centric sparsity of an attention head (HybridKV Eq. 2-3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TEXT_ROWS = ("after_visual", "all", "last_segment")
_QUERY_BLOCK = 32


def text_rows(visual: Tensor, mode: str, fallback_window: int) -> Tensor:
    """Positions of the text queries that score a head.

    Parameters
    ----------
    visual : Tensor [N], bool
    mode : str
        ``after_visual``: text after the first visual token (earlier rows see fewer than k keys, so their
        mass is exactly 1 and only dilutes the score); ``all``: every text token, the literal reading of
        Eq. 3; ``last_segment``: text after the last visual token.
    fallback_window : int
        Without any such row: all text rows, and without text the last ``fallback_window`` rows.

    Returns
    -------
    Tensor [T], int64, ascending; never empty.
    """
    length = visual.shape[0]
    text = (~visual).nonzero().squeeze(1)
    seen = visual.nonzero().squeeze(1)
    if mode != "all" and len(seen):
        boundary = seen[0] if mode == "after_visual" else seen[-1]
        after = text[text > boundary]
        if len(after):
            return after
    if len(text):
        return text
    return torch.arange(max(0, length - fallback_window), length, device=visual.device)


def text_centric_sparsity(
    queries: Tensor, keys: Tensor, rows: Tensor, scaling: float, top_k_ratio: float = 0.05
) -> Tensor:
    """Mean mass that text queries put on their k most attended tokens, per query head.

    ``S = mean_i sum of the k largest of softmax_causal(q_i K^T)``, ``k = ceil(top_k_ratio * N)``. Streams
    over KV heads and blocks of 32 queries: nothing of size heads x T x N exists.

    Parameters
    ----------
    queries : Tensor [Hq, N, D]
        Post-RoPE queries of the prompt.
    keys : Tensor [Hkv, N, D]
    rows : Tensor [T]
        Positions of the text queries, ascending.

    Returns
    -------
    Tensor [Hq], float32, in (0, 1].
    """
    num_kv_heads, length, _ = keys.shape
    top_k = max(1, math.ceil(top_k_ratio * length - 1e-9))
    grouped = queries.index_select(1, rows).unflatten(0, (num_kv_heads, -1))
    scores = []
    for head in range(num_kv_heads):
        head_keys = keys[head].float()
        mass = torch.zeros(grouped.shape[1], device=keys.device)
        for block, positions in zip(grouped[head].split(_QUERY_BLOCK, dim=1), rows.split(_QUERY_BLOCK), strict=True):
            mass += _top_mass(block.float() * scaling, head_keys, positions, top_k)
        scores.append(mass / len(rows))
    return torch.cat(scores)


def _top_mass(queries: Tensor, keys: Tensor, positions: Tensor, top_k: int) -> Tensor:
    """Sum over a block of rows of the mass on each row's ``top_k`` keys, [G]."""
    logits = torch.matmul(queries, keys.T)
    future = torch.arange(keys.shape[0], device=keys.device) > positions[:, None]
    logits.masked_fill_(future, float("-inf"))
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    top = logits.topk(top_k, dim=-1, sorted=False).values
    return (top - normaliser).exp().sum(dim=(-1, -2))
