"""Text-centric sparsity (HybridKV Eq. 2-3)."""

from __future__ import annotations

import math

import pytest
import torch

from kvcomp_eval.scoring.text_centric import text_centric_sparsity, text_rows


def naive(queries, keys, rows, scaling, ratio):
    """The formula with everything materialised."""
    groups = queries.shape[0] // keys.shape[0]
    length = keys.shape[1]
    logits = queries @ keys.repeat_interleave(groups, 0).transpose(1, 2) * scaling
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    attention = logits.masked_fill(~causal, float("-inf")).softmax(-1)
    return attention[:, rows].topk(math.ceil(ratio * length), dim=-1).values.sum(-1).mean(-1)


def test_streaming_equals_the_formula():
    torch.manual_seed(0)
    queries, keys = torch.randn(6, 150, 8), torch.randn(2, 150, 8)
    rows = torch.cat([torch.arange(3, 40), torch.arange(90, 150)])
    expected = naive(queries, keys, rows, 0.7, 0.05)
    torch.testing.assert_close(text_centric_sparsity(queries, keys, rows, 0.7), expected)


def test_one_hot_attention_is_fully_sparse():
    keys = torch.eye(40)[None] * 100
    assert text_centric_sparsity(keys, keys, torch.arange(40), 1.0).item() == pytest.approx(1.0)


def test_uniform_attention_puts_k_of_its_row_length_on_the_top():
    length = 1000
    keys = torch.zeros(1, length, 2)
    rows = torch.tensor([9, 499, 999])
    expected = (1 + 50 / 500 + 50 / 1000) / 3
    assert text_centric_sparsity(keys, keys, rows, 1.0).item() == pytest.approx(expected, abs=1e-5)


def test_permuting_visual_tokens_before_all_rows_changes_nothing():
    torch.manual_seed(0)
    queries, keys = torch.randn(2, 60, 4), torch.randn(1, 60, 4)
    permuted = keys.clone()
    permuted[:, 5:30] = keys[:, 5 + torch.randperm(25)]
    rows = torch.arange(30, 60)
    torch.testing.assert_close(
        text_centric_sparsity(queries, keys, rows, 0.5), text_centric_sparsity(queries, permuted, rows, 0.5)
    )


VISUAL = torch.tensor([0, 0, 1, 1, 0, 1, 0, 0], dtype=torch.bool)


@pytest.mark.parametrize(
    ("mode", "expected"), [("all", [0, 1, 4, 6, 7]), ("after_visual", [4, 6, 7]), ("last_segment", [6, 7])]
)
def test_text_rows(mode, expected):
    assert text_rows(VISUAL, mode, 2).tolist() == expected


def test_text_rows_fall_back_when_no_text_follows_or_none_exists():
    text_first = torch.tensor([0, 0, 1, 1], dtype=torch.bool)
    assert text_rows(text_first, "after_visual", 2).tolist() == [0, 1]
    assert text_rows(torch.ones(5, dtype=torch.bool), "after_visual", 2).tolist() == [3, 4]
    assert text_rows(torch.zeros(3, dtype=torch.bool), "last_segment", 2).tolist() == [0, 1, 2]
