"""Whether a head looks back at an earlier occurrence of its token (RazorAttention)."""

from __future__ import annotations

import torch
from torch import Tensor

from kvcomp_eval.scoring.columns import causal_attention_blocks


def echo_scores(queries: Tensor, keys: Tensor, period: int, scaling: float) -> Tensor:
    """Attention to the same token one period back (echo), and to the token after that one (induction).

    Tang et al., "RazorAttention", arXiv 2407.15891, Algorithm 1; mean over the tokens that have an earlier one.

    Parameters
    ----------
    queries : Tensor [Hq, N, D]
        Post-RoPE, of a text that repeats after ``period`` tokens.
    keys : Tensor [Hkv, N, D]

    Returns
    -------
    Tensor [2, Hq], float32
    """
    group = queries.shape[0] // keys.shape[0]
    rows = torch.arange(period, keys.shape[1], device=keys.device)
    sums = torch.zeros(2, keys.shape[0], group, device=keys.device)
    for head, weights in causal_attention_blocks(queries, keys, scaling, rows):
        # A block's rows are the last of its columns.
        for score, behind in enumerate((period, period - 1)):
            back = weights.diagonal(weights.shape[2] - weights.shape[1] - behind, dim1=1, dim2=2)
            sums[score, head] += back.sum(-1)
    return sums.flatten(1) / len(rows)
