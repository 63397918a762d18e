"""Statistics of the prompt's full attention matrix, streamed over KV heads and blocks of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

#: Logits that exist at a time (64 MB in float32).
_MAX_LOGITS = 1 << 24


def column_sums(queries: Tensor, keys: Tensor, scaling: float, rows: Tensor | None = None) -> Tensor:
    """Attention that each prompt token receives from all later queries (H2O, arXiv 2306.14048; LOOK-M eq. 4).

    Parameters
    ----------
    queries : Tensor [Hq, N, D]
        Post-RoPE.
    keys : Tensor [Hkv, N, D]
    rows : Tensor [T], optional
        Positions of the queries that count, ascending; all by default.

    Returns
    -------
    Tensor [Hkv, N], float32
        Mean over the GQA group; a head's sums add up to the number of queries.
    """
    sums = torch.zeros(keys.shape[:2], device=keys.device)
    for head, weights in causal_attention_blocks(queries, keys, scaling, rows):
        sums[head, : weights.shape[2]] += weights.mean(0).sum(0)
    return sums


def entropy_and_sums(queries: Tensor, keys: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Entropy of the causal attention rows, and the column sums, in one pass.

    Returns
    -------
    Tensor, scalar
        In nats, mean over rows and query heads (MEDA's official code).
    Tensor [Hkv, N]
        As :func:`column_sums`.
    """
    total, sums = _measured_sums(queries, keys, scaling, None, _entropy_sum)
    return total / (queries.shape[0] * queries.shape[1]), sums


def cross_modal_entropy(queries: Tensor, keys: Tensor, visual: Tensor, scaling: float) -> Tensor:
    """Entropy of text-to-visual plus visual-to-text attention, mean over rows and query heads (MEDA).

    ``softmax(Q_T K_V^T)`` and ``softmax(Q_V K_T^T)`` without a causal mask, as in arXiv 2502.17599. A prompt of
    one modality has no such attention; its entropy is 0.

    Parameters
    ----------
    queries : Tensor [Hq, N, D]
    keys : Tensor [Hkv, N, D]
    visual : Tensor [N], bool
    """
    entropy = torch.zeros((), device=keys.device)
    for rows, columns in ((~visual, visual), (visual, ~visual)):
        asked, answering = queries[:, rows], keys[:, columns]
        if asked.shape[1] and answering.shape[1]:
            entropy += _mean_entropy(asked, answering, scaling)
    return entropy


def density_and_sums(
    queries: Tensor, keys: Tensor, rows: Tensor, scaling: float, threshold: float
) -> tuple[Tensor, Tensor]:
    """How dense the attention of some rows is (VL-Cache), and their column sums, in one pass.

    Parameters
    ----------
    queries : Tensor [Hq, N, D]
    keys : Tensor [Hkv, N, D]
    rows : Tensor [T]
        Positions of the post-vision queries, ascending.
    threshold : float
        0.01 in arXiv 2410.23317.

    Returns
    -------
    Tensor, scalar
        Share of the causal entries that reach ``threshold`` times their row's maximum, mean over query heads; in
        (0, 1].
    Tensor [Hkv, N]
        As :func:`column_sums`.
    """

    def reaching(weights: Tensor) -> Tensor:
        # Masked entries are exactly 0 and the row maximum is positive, so they never count.
        return (weights >= threshold * weights.amax(-1, keepdim=True)).sum()

    kept, sums = _measured_sums(queries, keys, scaling, rows, reaching)
    return kept / (queries.shape[0] * (rows + 1).sum()), sums


def _measured_sums(
    queries: Tensor, keys: Tensor, scaling: float, rows: Tensor | None, measure: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Sum of ``measure`` over the blocks of weights, and the column sums."""
    total, sums = torch.zeros((), device=keys.device), torch.zeros(keys.shape[:2], device=keys.device)
    for head, weights in causal_attention_blocks(queries, keys, scaling, rows):
        total = total + measure(weights)
        sums[head, : weights.shape[2]] += weights.mean(0).sum(0)
    return total, sums


def causal_attention_blocks(
    queries: Tensor, keys: Tensor, scaling: float, rows: Tensor | None = None
) -> Iterator[tuple[int, Tensor]]:
    """Yield (KV head, softmax weights [G, b, n] in float32) for one block of query rows after the other.

    Columns after a block's last row are zero by causality and left out, so ``n`` grows up to N.
    """
    num_kv_heads, length, _ = keys.shape
    rows = torch.arange(length, device=keys.device) if rows is None else rows
    group = queries.shape[0] // num_kv_heads
    block = max(1, _MAX_LOGITS // (group * length))
    picked = queries if len(rows) == length else queries.index_select(1, rows)
    grouped = picked.unflatten(0, (num_kv_heads, group))
    blocks = [(positions, positions.tolist()[-1] + 1) for positions in rows.cpu().split(block)]
    for head in range(num_kv_heads):
        start = 0
        for positions, columns in blocks:
            stop = start + len(positions)
            logits = torch.matmul(grouped[head, :, start:stop].float() * scaling, keys[head, :columns].float().T)
            positions = positions.to(keys.device)
            future = torch.arange(columns, device=keys.device) > positions[:, None]
            yield head, logits.masked_fill_(future, float("-inf")).softmax(-1)
            start = stop


def _mean_entropy(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Mean row entropy of ``softmax(queries keys^T)`` without mask."""
    num_kv_heads, columns, _ = keys.shape
    grouped = queries.unflatten(0, (num_kv_heads, -1))
    block = max(1, _MAX_LOGITS // (grouped.shape[1] * columns))
    total = torch.zeros((), device=keys.device)
    for head in range(num_kv_heads):
        head_keys = keys[head].float().T
        for part in grouped[head].split(block, dim=1):
            total += _entropy_sum(torch.matmul(part.float() * scaling, head_keys).softmax(-1))
    return total / (queries.shape[0] * queries.shape[1])


def _entropy_sum(weights: Tensor) -> Tensor:
    return -torch.xlogy(weights, weights).sum()
