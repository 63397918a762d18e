"""MadaKV: demands per modality, compensation between layers, exact totals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcomp_eval import make_method
from kvcomp_eval.budgets.compensated import compensated_budgets
from kvcomp_eval.methods.madakv import demand, favour
from kvcomp_eval.selection import top_positions
from tests.methods.prompts import entries, kept

PSI = torch.tensor([[0.30, 0.05, 0.02, 0.20, 0.10, 0.08, 0.03, 0.02, 0.15, 0.05]])
VISUAL = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 0, 0], dtype=torch.bool)


@pytest.mark.parametrize(("theta", "expected"), [(0.8, (3, 3)), (0.9, (4, 4)), (1.0, (5, 5))])
def test_demand_vectors(theta, expected):
    assert (demand(PSI, VISUAL, theta).item(), demand(PSI, ~VISUAL, theta).item()) == expected


def test_absent_modality_asks_for_nothing():
    assert demand(PSI, torch.zeros(10, dtype=torch.bool), 0.9).item() == 0


def test_compensation_vector():
    """Demands 7, 6, 4, 5 of mean 5: budgets 5, 4.33, 3.5, 3 if demands are met, and the last layer is cut."""
    remaining, spent, phi = 20, [], []
    for layer, asked in enumerate([7, 6, 4, 5]):
        phi.append(remaining / (4 - layer))
        spent += compensated_budgets([asked], remaining, 3 - layer, most=50, reserve=2)
        remaining -= spent[-1]
    assert phi == pytest.approx([5, 13 / 3, 3.5, 3])
    assert spent == [7, 6, 4, 3]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 60), min_size=3, max_size=3), min_size=1, max_size=8),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_compensation_is_exact_and_leaves_the_reserve(demands, mean, reserve):
    reserve = min(reserve, mean)
    remaining = len(demands) * 3 * mean
    for layer, asked in enumerate(demands):
        later = len(demands) - layer - 1
        budgets = compensated_budgets(asked, remaining, later, most=60, reserve=reserve)
        remaining -= sum(budgets)
        assert remaining >= later * 3 * reserve
        assert all(1 <= budget <= 60 for budget in budgets)
    assert remaining == 0


@pytest.mark.parametrize(
    ("asked", "budget", "expected"),
    [
        ([3, 3], 6, {3, 4, 5, 0, 8, 1}),
        ([3, 3], 4, {3, 4, 0, 8}),
        ([1, 1], 3, {3, 0, 8}),
    ],
)
def test_head_keeps_the_best_of_each_modality(asked, budget, expected):
    assert set(top_positions(favour(PSI[0], VISUAL, asked, budget), budget).tolist()) == expected


def test_all_text_prompt_keeps_the_best_scores():
    """One modality: every head keeps its best tokens, however many it gets."""
    for ours, theirs in zip(
        kept(make_method("madakv", budget_ratio=0.3))[0],
        kept(make_method("snapkv", budget_ratio=0.3, kernel=1))[0],
        strict=True,
    ):
        assert set(theirs) <= set(ours) or set(ours) <= set(theirs)


@pytest.mark.parametrize("reserve", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("ratio", [0.17, 0.3, 0.6, 0.95, 1.0])
def test_total_is_exact(ratio, reserve):
    method = make_method("madakv", budget_ratio=ratio, reserve=reserve)
    assert entries(method, length=200, visual=slice(20, 150)) == 4 * 3 * round(ratio * 200)
