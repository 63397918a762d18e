"""HybridKV's top-down allocation (Eq. 4-5): the vectors of the specification and its edges."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcomp_eval.budgets.head_types import ChunkGrid, HeadTypeRule

SCORES = [0.99, 0.97, 0.95, 0.93, 0.91, 0.80, 0.70, 0.60]
GRID = ChunkGrid(prompt_length=1000, reserved=32, chunk_size=8)


def classified(scores, theta):
    """Scores, and which heads are static."""
    return scores, [score >= theta for score in scores]


def static_entries(budgets):
    return [entries for entries, static in zip(budgets.entries, budgets.static, strict=True) if static]


def test_chunk_grid():
    assert (GRID.num_chunks, GRID.tail) == (121, 32)
    assert (ChunkGrid(1003, 32, 8).num_chunks, ChunkGrid(1003, 32, 8).tail) == (121, 35)
    assert (ChunkGrid(20, 32, 8).num_chunks, ChunkGrid(20, 32, 8).tail) == (0, 20)


def test_five_static_and_three_dynamic_heads():
    budgets = HeadTypeRule().allocate(*classified(SCORES, 0.9), 800, GRID, 32)
    assert budgets.static == (True,) * 5 + (False,) * 3
    assert budgets.padded == 64
    assert budgets.chunks == 4
    assert static_entries(budgets) == [124, 123, 122, 120, 119]
    assert sum(budgets.entries) == 800


@pytest.mark.parametrize(
    ("alpha", "rounding", "expected"),
    [
        (0.5, "exact", [117, 116, 115, 114, 113]),
        (0.5, "ceil", [118, 117, 115, 114, 113]),
        (0.2, "exact", [119, 117, 115, 113, 111]),
        (1.0, "exact", [115, 115, 115, 115, 115]),
    ],
)
def test_literal_total_keeps_the_static_share_of_eq_4(alpha, rounding, expected):
    rule = HeadTypeRule(alpha=alpha, rounding=rounding, total="literal")
    assert static_entries(rule.allocate(*classified(SCORES, 0.9), 800, GRID, 32)) == expected


@pytest.mark.parametrize(
    ("padding", "expected"), [("nearest", 64), ("nearest_linear", 64), ("next", 128), ("prev", 64), ("none", 75)]
)
def test_padding_rules(padding, expected):
    assert (
        HeadTypeRule(padding=padding, total="literal").allocate(*classified(SCORES, 0.9), 800, GRID, 32).padded
        == expected
    )


@pytest.mark.parametrize(("padding", "expected"), [("nearest", 4096), ("nearest_linear", 2048)])
def test_nearest_differs_between_exponent_and_value(padding, expected):
    grid = ChunkGrid(30000, 32, 8)
    rule = HeadTypeRule(padding=padding, total="literal", r=1)
    assert rule.allocate(*classified([0.1] * 4, 0.9), 4 * 3017, grid, 32).padded == expected


def test_all_dynamic_heads_take_the_whole_share():
    budgets = HeadTypeRule().allocate(*classified(SCORES, math.inf), 8 * 128, GRID, 32)
    assert not any(budgets.static)
    assert budgets.padded == 128
    assert "no static head: r = 1" in budgets.notes
    assert HeadTypeRule(literal_r=True).allocate(*classified(SCORES, math.inf), 8 * 128, GRID, 32).notes == ()


def test_without_static_heads_a_power_of_two_that_does_not_fit_is_replaced_by_what_fits():
    budgets = HeadTypeRule().allocate(*classified(SCORES, math.inf), 8 * 113, ChunkGrid(566, 32, 8), 32)
    assert 8 * (113 - 8) < sum(budgets.entries) <= 8 * 113
    assert any("not padded" in note for note in budgets.notes)


def test_all_static_heads_share_everything():
    budgets = HeadTypeRule().allocate(*classified(SCORES, -math.inf), 800, GRID, 32)
    assert all(budgets.static)
    assert sum(budgets.entries) == 800
    assert list(budgets.entries) == sorted(budgets.entries, reverse=True)


def test_static_heads_keep_their_window_when_r_is_too_large():
    budgets = HeadTypeRule(r=1.25).allocate(*classified([0.95] + [0.1] * 9, 0.9), 10 * 64, GRID, 32)
    assert static_entries(budgets)[0] >= 32
    assert any(note.startswith("r cut to") for note in budgets.notes)


def test_a_budget_too_small_for_a_power_of_two_is_met_in_chunks():
    budgets = HeadTypeRule().allocate(*classified([0.1] * 8, 0.9), 8 * 45, ChunkGrid(450, 32, 8), 32)
    assert budgets.chunks == 1
    assert sum(budgets.entries) <= 8 * 45
    assert any("not padded" in note for note in budgets.notes)


@settings(deadline=None)
@given(
    st.lists(st.floats(0.01, 1), min_size=2, max_size=24),
    st.integers(100, 3000),
    st.floats(0.05, 0.95),
    st.floats(0, 1.25),
    st.floats(0, 1),
)
def test_conserved_total_is_never_exceeded(scores, length, ratio, r, alpha):
    grid = ChunkGrid(length, 32, 8)
    total = max(math.floor(ratio * length * len(scores)), len(scores) * 33)
    budgets = HeadTypeRule(r=r, alpha=alpha).allocate(*classified(scores, 0.5), total, grid, 32)
    spent = sum(budgets.entries)
    assert all(1 <= entries <= length for entries in budgets.entries)
    if any(budgets.static):
        # Only heads that are full already can leave something over.
        assert spent == total or (spent < total and max(budgets.entries) == length)
    else:
        assert spent <= total or budgets.chunks == 0
