"""PyramidKV, AdaKV, StreamingLLM and the random floor: golden vectors, identities and exact budgets."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcomp_eval import SnapKV, make_method
from kvcomp_eval.budgets.adaptive import adaptive_budgets
from kvcomp_eval.budgets.pyramid import pyramid_budgets
from kvcomp_eval.methods.base import LayerPrefill

# fmt: off
PYRAMID_28 = [
    63, 61, 58, 56, 54, 52, 49, 47, 45, 42, 40, 38, 35, 33, 31, 29, 26, 24, 22, 19, 17, 15, 12, 10, 8, 6, 3, 1,
]
PYRAMID_SHORT = [
    48, 47, 46, 44, 43, 42, 41, 40, 39, 37, 36, 35, 34, 33, 31, 30, 29, 28, 27, 25, 24, 23, 22, 21, 20, 18, 17, 16,
]
# fmt: on


def layer(index=0, layers=4, length=300, seed=0):
    generator = torch.Generator().manual_seed(seed + index)
    return LayerPrefill(
        layer=index,
        num_layers=layers,
        queries=2 * torch.randn(6, length, 16, generator=generator),
        keys=torch.randn(3, length, 16, generator=generator),
        values=torch.randn(3, length, 16, generator=generator),
        visual=torch.zeros(length, dtype=torch.bool),
        scaling=0.25,
    )


def kept(method, layers=4, length=300):
    return [[head.kept.tolist() for head in method.observe(layer(i, layers, length))] for i in range(layers)]


@pytest.mark.parametrize(
    ("base", "layers", "prompt", "window", "official", "expected"),
    [
        (64, 4, 1000, 8, True, [125, 85, 45, 5]),
        (64, 4, 1000, 8, False, [125, 84, 44, 3]),
        (32, 28, 4830, 32, False, PYRAMID_28),
        (32, 28, 4830, 32, True, list(range(63, 8, -2))),
        (32, 28, 80, 32, False, PYRAMID_SHORT),
        (32, 28, 63, 8, False, [32] * 28),
    ],
)
def test_pyramid_vectors(base, layers, prompt, window, official, expected):
    assert pyramid_budgets(base, layers, 20, prompt, window, official) == expected


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(2, 40), st.integers(1, 30), st.integers(0, 2000), st.integers(1, 32))
def test_pyramid_is_exact_and_falls(base, layers, beta, beyond, window):
    most = base + beyond
    budgets = pyramid_budgets(base, layers, beta, most + window, window)
    assert sum(budgets) == layers * base
    assert all(above >= below for above, below in itertools.pairwise(budgets))
    assert all(0 <= budget <= most for budget in budgets)


TWO_HEADS = torch.tensor([[0.30, 0.05, 0.20, 0.02, 0.01, 0.02], [0.10, 0.09, 0.11, 0.08, 0.12, 0.10]])
THREE_HEADS = torch.tensor(
    [
        [0.40, 0.30, 0.05, 0.04, 0.03, 0.02, 0.01, 0.005],
        [0.12, 0.11, 0.105, 0.10, 0.095, 0.09, 0.085, 0.08],
        [0.25, 0.07, 0.065, 0.06, 0.015, 0.012, 0.011, 0.009],
    ]
)


@pytest.mark.parametrize(
    ("scores", "base", "options", "expected"),
    [
        (TWO_HEADS, 3, {"floor": 0.0}, [2, 4]),
        (TWO_HEADS, 3, {"floor": 0.2, "official": True}, [2, 3]),
        (TWO_HEADS, 3, {"floor": 0.2}, [2, 4]),
        (TWO_HEADS, 3, {"floor": 1.0}, [3, 3]),
        (THREE_HEADS, 4, {"floor": 0.0}, [2, 8, 2]),
        (THREE_HEADS, 4, {"floor": 0.0, "normalize": True}, [2, 6, 4]),
        (THREE_HEADS, 4, {"floor": 0.2, "official": True}, [2, 6, 2]),
        (THREE_HEADS, 4, {"floor": 0.2}, [3, 7, 2]),
        (THREE_HEADS, 4, {"floor": 0.5}, [3, 6, 3]),
        (THREE_HEADS, 5, {"floor": 0.0}, [3, 8, 4]),
        (THREE_HEADS, 5, {"floor": 0.2}, [4, 7, 4]),
        (THREE_HEADS, 5, {"floor": 0.2, "official": True}, [3, 7, 4]),
    ],
)
def test_adakv_vectors(scores, base, options, expected):
    assert adaptive_budgets(scores, base, **options) == expected


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(2, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 1000))
def test_adakv_is_exact_within_bounds(heads, prefix, base, floor, seed):
    scores = torch.rand(heads, prefix, generator=torch.Generator().manual_seed(seed))
    budgets = adaptive_budgets(scores, base, floor)
    assert sum(budgets) == heads * min(base, prefix)
    assert all(0 <= budget <= prefix for budget in budgets)


def test_adakv_without_floor_keeps_the_most_mass():
    scores = torch.rand(2, 5, generator=torch.Generator().manual_seed(3))
    ordered = scores.sort(descending=True).values
    budgets = adaptive_budgets(scores, 2, 0.0)
    mass = sum(ordered[head, :count].sum() for head, count in enumerate(budgets))
    best = max(ordered[0, :a].sum() + ordered[1, : 4 - a].sum() for a in range(5))
    assert mass == pytest.approx(best)


@pytest.mark.parametrize(("name", "parameters"), [("pyramidkv", {"beta": 1}), ("adakv", {"floor": 1})])
def test_uniform_settings_are_snapkv(name, parameters):
    assert kept(make_method(name, budget_ratio=0.3, **parameters)) == kept(SnapKV(budget_ratio=0.3))


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv", "adakv", "streamingllm", "random"])
@pytest.mark.parametrize("ratio", [0.12, 0.2, 0.4, 0.8])
def test_total_is_exact(name, ratio):
    total = sum(len(head) for heads in kept(make_method(name, budget_ratio=ratio)) for head in heads)
    assert total == 4 * 3 * round(ratio * 300)


@pytest.mark.parametrize(
    ("sinks", "expected"), [(4, [0, 1, 2, 3, 8, 9]), (2, [0, 1, 6, 7, 8, 9]), (0, [4, 5, 6, 7, 8, 9])]
)
def test_streamingllm_positions(sinks, expected):
    method = make_method("streamingllm", budget_entries=6, sinks=sinks)
    assert kept(method, layers=1, length=10) == [[expected] * 3]


def test_random_depends_on_its_seed_only():
    assert kept(make_method("random", budget_ratio=0.3)) == kept(make_method("random", budget_ratio=0.3))
    assert kept(make_method("random", budget_ratio=0.3)) != kept(make_method("random", budget_ratio=0.3, seed=1))
    heads = kept(make_method("random", budget_ratio=0.3), layers=1)[0]
    assert heads[0] != heads[1]
