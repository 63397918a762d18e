"""Window attention, pooling and selection: SnapKV's golden vectors and invariants."""

from __future__ import annotations

import pytest
import torch

from kvcomp_eval.scoring.pooling import check_pooling, pool_scores
from kvcomp_eval.scoring.window import window_attention, window_scores
from kvcomp_eval.selection import text_prior_positions, top_positions, window_positions

RAW = torch.tensor([[0.02, 0.30, 0.01, 0.03, 0.02, 0.20, 0.22, 0.05]])


@pytest.mark.parametrize(
    ("kernel", "kind", "pooled", "kept"),
    [
        (1, "avg", None, [1, 5, 6]),
        (3, "avg", [0.106667, 0.11, 0.113333, 0.02, 0.083333, 0.146667, 0.156667, 0.09], [2, 5, 6]),
        (3, "max", [0.3, 0.3, 0.3, 0.03, 0.2, 0.22, 0.22, 0.22], [0, 1, 2]),
    ],
)
def test_pooled_selection(kernel, kind, pooled, kept):
    scores = pool_scores(RAW, kernel, kind)
    if pooled is not None:
        torch.testing.assert_close(scores[0], torch.tensor(pooled), atol=1e-6, rtol=0)
    assert top_positions(scores[0], 3).tolist() == kept


def test_window_rows_and_their_mean():
    keys = torch.tensor([0.0, 1, 2, 0, 1, 0])[:, None]
    queries = torch.tensor([1.0, 2])[None, :, None]
    attention = window_attention(queries, keys, scaling=1.0)
    expected = [
        [0.067451, 0.183350, 0.498398, 0.067451, 0.183350, 0],
        [0.013817, 0.102092, 0.754365, 0.013817, 0.102092, 0.013817],
    ]
    torch.testing.assert_close(attention[0], torch.tensor(expected), atol=1e-6, rtol=0)
    all_queries = torch.cat([torch.zeros(1, 4, 1), queries], dim=1)
    scores = window_scores(all_queries, keys[None], window=2, scaling=1.0)
    torch.testing.assert_close(scores[0, :4], torch.tensor([0.040634, 0.142721, 0.626382, 0.040634]), atol=1e-6, rtol=0)


def test_group_is_averaged_over_its_own_query_heads():
    torch.manual_seed(0)
    queries, keys = torch.randn(6, 20, 4), torch.randn(2, 20, 4)
    scores = window_scores(queries, keys, window=5, scaling=0.5)
    for kv_head in range(2):
        alone = [
            window_scores(queries[head : head + 1], keys[kv_head : kv_head + 1], 5, 0.5)
            for head in range(3 * kv_head, 3 * kv_head + 3)
        ]
        torch.testing.assert_close(scores[kv_head], torch.cat(alone).mean(0))


def test_equal_scores_keep_the_lowest_positions():
    flat = torch.full((1, 10), 0.1)
    assert top_positions(flat[0], 3).tolist() == [0, 1, 2]
    assert top_positions(pool_scores(flat, 5)[0], 3).tolist() == [2, 3, 4]
    assert top_positions(pool_scores(flat, 5, "max")[0], 3).tolist() == [0, 1, 2]


def test_window_is_always_kept_and_positions_ascend():
    kept = window_positions(torch.rand(30), entries=12, prompt_length=36, window=6)
    assert kept[-6:].tolist() == list(range(30, 36))
    assert (kept.diff() > 0).all()
    assert len(kept) == 12


def test_text_prior_fills_window_then_text_then_visual():
    visual = torch.ones(100, dtype=torch.bool)
    text = torch.arange(0, 60, 2)
    visual[text] = False
    scores = torch.rand(100, generator=torch.Generator().manual_seed(1))
    roomy = text_prior_positions(scores, visual, entries=50, window=8)
    assert set(range(92, 100)) <= set(roomy.tolist())
    assert set(text.tolist()) <= set(roomy.tolist())
    chosen_visual = [p for p in roomy.tolist() if p < 92 and visual[p]]
    best = sorted((p for p in range(92) if visual[p]), key=lambda p: -scores[p])[:12]
    assert chosen_visual == sorted(best)


def test_text_prior_with_more_text_than_budget_keeps_the_best_text():
    visual = torch.ones(100, dtype=torch.bool)
    text = torch.arange(0, 60, 2)
    visual[text] = False
    scores = torch.rand(100, generator=torch.Generator().manual_seed(1))
    kept = text_prior_positions(scores, visual, entries=20, window=8).tolist()
    assert len(kept) == 20
    assert kept[-8:] == list(range(92, 100))
    best = sorted(text.tolist(), key=lambda p: -scores[p])[:12]
    assert kept[:12] == sorted(best)


def test_text_prior_below_the_window_keeps_the_last_tokens():
    visual = torch.zeros(20, dtype=torch.bool)
    assert text_prior_positions(torch.rand(20), visual, 5, 8).tolist() == [15, 16, 17, 18, 19]
    assert text_prior_positions(torch.rand(20), visual, 20, 8).tolist() == list(range(20))


@pytest.mark.parametrize(
    ("kernel", "kind", "message"), [(4, "avg", "kernel=4"), (0, "avg", "kernel=0"), (3, "sum", "avg, max")]
)
def test_pooling_errors(kernel, kind, message):
    with pytest.raises(ValueError, match=message):
        check_pooling(kernel, kind)
