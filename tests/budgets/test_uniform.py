"""The common budget convention."""

from __future__ import annotations

import pytest

from kvcomp_eval.budgets.uniform import effective_window, entries_per_head


@pytest.mark.parametrize(
    ("length", "ratio", "entries", "expected"),
    [
        (1000, 0.1, None, 100),
        (645, 0.1, None, 65),
        (640, 0.05, None, 33),
        (20, 0.1, None, 20),
        (1000, None, 64, 64),
        (50, None, 64, 50),
        (1000, None, 10, 10),
        (1000, None, None, 1000),
        (1000, 1.0, None, 1000),
    ],
)
def test_entries_per_head(length, ratio, entries, expected):
    assert entries_per_head(length, ratio, entries, window=32) == expected


@pytest.mark.parametrize(("entries", "length", "expected"), [(64, 640, 32), (20, 640, 19), (64, 10, 9), (1, 640, 1)])
def test_window_leaves_room_for_a_selected_entry(entries, length, expected):
    assert effective_window(32, entries, length) == expected
