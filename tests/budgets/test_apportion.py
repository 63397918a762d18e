"""Exact apportioning: golden vectors and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcomp_eval.budgets.apportion import apportion, real_shares

INF = math.inf


def softmax(values):
    exponentials = np.exp(values)
    return list(exponentials / exponentials.sum())


@pytest.mark.parametrize(
    ("weights", "total", "lower", "upper", "mode", "expected"),
    [
        ([0.4, 0, 0.4, 0.2], 128, 3, INF, "plus", [50, 3, 49, 26]),
        ([0.4, 0, 0.4, 0.2], 128, 3, 40, "plus", [40, 8, 40, 40]),
        ([0.4, 0, 0.4, 0.2], 128, 3, 45, "plus", [45, 3, 45, 35]),
        (softmax([2, 1, 0.5, 0.5]), 80, 1, 100, "clip", [44, 16, 10, 10]),
        (softmax([6, 1, 1, 1]), 160, 1, 100, "clip", [100, 20, 20, 20]),
        ([0.6, 0.3, 0.1, 0.2], 40, 1, 100, "clip", [20, 10, 3, 7]),
        ([0.98, 0.01, 0.005, 0.005], 60, 5, INF, "clip", [45, 5, 5, 5]),
    ],
)
def test_golden_vectors(weights, total, lower, upper, mode, expected):
    assert apportion(weights, total, lower, upper, mode) == expected


def test_a_part_that_reaches_its_bound_up_to_rounding_stays_there():
    assert apportion([1.0, 1.0, 0.546875, 0.671875], 399, 32, 104, "clip") == [104, 104, 87, 104]


def test_real_shares_of_the_first_vectors():
    assert real_shares([0.4, 0, 0.4, 0.2], 128, 3) == pytest.approx([49.4, 3, 49.4, 26.2])
    assert real_shares(softmax([2, 1, 0.5, 0.5]), 80, 1, 100, "clip") == pytest.approx(
        [44.098, 16.223, 9.840, 9.840], abs=1e-3
    )


weights_lists = st.lists(st.floats(0, 10, allow_nan=False), min_size=1, max_size=12)


@given(weights_lists, st.integers(0, 5), st.integers(5, 60), st.floats(0, 1), st.sampled_from(["plus", "clip"]))
def test_sums_to_the_total_within_bounds(weights, lower, upper, position, mode):
    low, high = lower * len(weights), upper * len(weights)
    total = low + round(position * (high - low))
    parts = apportion(weights, total, lower, upper, mode)
    assert sum(parts) == total
    assert all(lower <= part <= upper for part in parts)


@given(weights_lists, st.integers(0, 3), st.integers(0, 200), st.integers(1, 50), st.sampled_from(["plus", "clip"]))
def test_real_shares_grow_with_the_total(weights, lower, total, extra, mode):
    total += lower * len(weights)
    smaller = real_shares(weights, total, lower, INF, mode)
    larger = real_shares(weights, total + extra, lower, INF, mode)
    assert (larger >= smaller - 1e-6).all()


@given(weights_lists, st.floats(0.1, 10))
def test_scaling_the_weights_changes_nothing(weights, factor):
    if sum(weights) < 1e-3:
        return
    shares = real_shares(weights, 100, 1)
    assert real_shares([weight * factor for weight in weights], 100, 1) == pytest.approx(shares, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 1], 5, 3), "total=5 does not fit between the bounds, which sum to 6 and inf"),
        (([1, 1], 5, 0, 2), "total=5 does not fit"),
        (([1, -1], 5), "non-negative"),
        (([1, float("nan")], 5), "finite"),
        (([1, 1], 5, 0, INF, "other"), "use one of plus, clip"),
    ],
)
def test_errors_name_value_and_bounds(arguments, message):
    with pytest.raises(ValueError, match=message):
        apportion(*arguments)
