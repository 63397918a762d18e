"""Column sums, entropies and densities: dense computation, vectors of the specification, bounded memory."""

from __future__ import annotations

import math

import pytest
import torch

from kvcomp_eval.scoring import columns
from kvcomp_eval.scoring.columns import column_sums, cross_modal_entropy, density_and_sums, entropy_and_sums


def from_rows(rows):
    """One head whose attention rows are these (0 where masked): keys are unit vectors, queries logits."""
    weights = torch.tensor(rows)
    return weights.clamp(min=1e-30).log()[None], torch.eye(len(rows))[None]


def random_layer(length=50, heads=6, kv_heads=3):
    generator = torch.Generator().manual_seed(0)
    queries = 2 * torch.randn(heads, length, 16, generator=generator)
    return queries, torch.randn(kv_heads, length, 16, generator=generator)


def dense(queries, keys, scaling):
    keys = keys.repeat_interleave(queries.shape[0] // keys.shape[0], 0)
    future = torch.ones(keys.shape[1], keys.shape[1], dtype=torch.bool).triu(1)
    return (queries @ keys.transpose(1, 2) * scaling).masked_fill(future, float("-inf")).softmax(-1)


H2O_ROWS = [
    [1, 0, 0, 0, 0, 0],
    [0.6, 0.4, 0, 0, 0, 0],
    [0.5, 0.1, 0.4, 0, 0, 0],
    [0.3, 0.1, 0.2, 0.4, 0, 0],
    [0.2, 0.05, 0.3, 0.05, 0.4, 0],
    [0.2, 0.1, 0.3, 0.1, 0.1, 0.2],
]


def test_column_sums_vector():
    sums = column_sums(*from_rows(H2O_ROWS), scaling=1.0)
    torch.testing.assert_close(sums[0], torch.tensor([2.8, 0.75, 1.2, 0.55, 0.5, 0.2]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", [None, torch.tensor([3, 4, 20, 49])])
@pytest.mark.parametrize("block", [1, 700, 1 << 24])
def test_blocks_equal_the_dense_matrix(monkeypatch, block, rows):
    monkeypatch.setattr(columns, "_MAX_LOGITS", block)
    queries, keys = random_layer()
    weights = dense(queries, keys, 0.25)
    picked = weights if rows is None else weights[:, rows]
    sums = column_sums(queries, keys, 0.25, rows)
    torch.testing.assert_close(sums, picked.sum(1).unflatten(0, (3, 2)).mean(1), atol=1e-5, rtol=1e-5)
    assert sums.sum(1).tolist() == pytest.approx([picked.shape[1]] * 3, rel=1e-5)
    entropy = -torch.xlogy(weights, weights).sum(-1).mean()
    measured, beside = entropy_and_sums(queries, keys, 0.25)
    torch.testing.assert_close(measured, entropy, atol=1e-5, rtol=1e-5)
    assert torch.equal(beside, column_sums(queries, keys, 0.25))
    chosen = torch.arange(50) if rows is None else rows
    reached = (picked >= 0.01 * picked.amax(-1, keepdim=True)) & (picked > 0)
    density = reached.sum() / (6 * (chosen + 1).sum())
    measured, beside = density_and_sums(queries, keys, chosen, 0.25, 0.01)
    torch.testing.assert_close(measured, density)
    assert torch.equal(beside, sums)


def test_density_vector():
    rows = [[0.0] * 6] * 4 + [[0.50, 0.30, 0.10, 0.096, 0.004, 0], [0.40, 0.003, 0.397, 0.10, 0.05, 0.05]]
    queries, keys = from_rows(rows)
    density, sums = density_and_sums(queries, keys, torch.tensor([4, 5]), 1.0, 0.01)
    assert density.item() == pytest.approx(9 / 11)
    torch.testing.assert_close(sums[0], torch.tensor([0.9, 0.303, 0.497, 0.196, 0.054, 0.05]), atol=1e-5, rtol=0)


def test_cross_modal_entropy_vector():
    """Two text and two visual tokens; rows of A_TV [.5,.5], [.25,.75] and of A_VT [1,0], [.5,.5]."""
    visual = torch.tensor([False, False, True, True])
    queries = torch.tensor([[0, 0, 0.5, 0.5], [0, 0, 0.25, 0.75], [1, 0, 0, 0], [0.5, 0.5, 0, 0]])
    entropy = cross_modal_entropy(queries.clamp(min=1e-30).log()[None], torch.eye(4)[None], visual, 1.0)
    assert entropy.item() == pytest.approx(0.627741 + 0.346574, abs=1e-5)


def test_cross_modal_entropy_of_uniform_attention_and_of_one_modality():
    queries, keys = torch.zeros(2, 8, 4), torch.zeros(1, 8, 4)
    visual = torch.arange(8) < 3
    assert cross_modal_entropy(queries, keys, visual, 1.0).item() == pytest.approx(math.log(3) + math.log(5))
    assert cross_modal_entropy(queries, keys, torch.zeros(8, dtype=torch.bool), 1.0).item() == 0
