"""HybridKV as a whole: totals, ablations, and what the report says."""

from __future__ import annotations

import math

import pytest
import torch

from kvcomp_eval import HybridKV
from kvcomp_eval.methods.base import LayerPrefill

LENGTH, LAYERS, KV_HEADS, GROUP, DIM = 400, 3, 2, 2, 16


def observations(method, length=LENGTH, text=60, seed=0):
    """Observations of a random prompt: visual tokens, then text; odd KV heads look sharply."""
    generator = torch.Generator().manual_seed(seed)
    visual = torch.arange(length) < length - text
    sharpness = torch.tensor([1.0, 8.0]).repeat_interleave(GROUP)[:, None, None]
    return [
        method.observe(
            LayerPrefill(
                layer=layer,
                num_layers=LAYERS,
                queries=torch.randn(KV_HEADS * GROUP, length, DIM, generator=generator) * sharpness,
                keys=torch.randn(KV_HEADS, length, DIM, generator=generator),
                values=torch.randn(KV_HEADS, length, DIM, generator=generator),
                visual=visual,
                scaling=DIM**-0.5,
            )
        )
        for layer in range(LAYERS)
    ]


def planned(method, **kwargs):
    details = {}
    plans = method.plan(observations(method, **kwargs), details)
    return [head for layer in plans for head in layer], details


@pytest.mark.parametrize("ratio", [0.1, 0.2, 0.4, 0.7])
@pytest.mark.parametrize("length", [400, 403, 407])
def test_conserved_total_is_met_to_the_entry(ratio, length):
    heads, details = planned(HybridKV(budget_ratio=ratio, theta_quantile=0.5), length=length)
    total = math.floor(ratio * length * LAYERS * KV_HEADS)
    assert 0 < details["budgets"][0]["dynamic_heads"] < LAYERS * KV_HEADS
    assert sum(head.slots for head in heads) == total


def test_sharp_heads_are_static():
    _, details = planned(HybridKV(budget_ratio=0.2, theta=0.7))
    assert details["static"][0] == [False, True] * LAYERS
    assert details["text_queries"] == [60]


@pytest.mark.parametrize(("theta", "dynamic"), [(-math.inf, 0), (math.inf, LAYERS * KV_HEADS)])
def test_all_static_and_all_dynamic(theta, dynamic):
    heads, details = planned(HybridKV(budget_ratio=0.2, theta=theta))
    assert details["budgets"][0]["dynamic_heads"] == dynamic
    assert sum(head.retrieval is not None for head in heads) == dynamic


def test_without_head_level_allocation_static_heads_are_equal():
    heads, details = planned(HybridKV(budget_ratio=0.2, theta_quantile=0.5, alpha=1))
    sizes = {head.slots for head, static in zip(heads, details["static"][0], strict=True) if static}
    assert max(sizes) - min(sizes) <= 1


def test_without_both_levels_every_head_gets_the_mean():
    method = HybridKV(budget_ratio=0.2, theta_quantile=0.5, alpha=1, r=1, padding="none")
    heads, _ = planned(method)
    assert all(abs(head.slots - 80) <= method.chunk_size for head in heads)


def test_retrieving_head_keeps_window_and_remainder():
    heads, details = planned(HybridKV(budget_ratio=0.2, theta=math.inf), length=403)
    spec = heads[0].retrieval
    assert spec.num_chunks == (403 - 32) // 8
    assert heads[0].kept.tolist() == list(range(spec.num_chunks * 8, 403))
    assert spec.retrieved == details["budgets"][0]["chunks"]


def test_literal_window_rule_retrieves_p_over_chunk_chunks_of_the_whole_prompt():
    method = HybridKV(budget_ratio=0.2, theta=math.inf, count_window=False)
    heads, details = planned(method, length=403)
    assert details["budgets"][0]["padded"] == 64
    assert heads[0].retrieval.retrieved == 8
    assert heads[0].retrieval.num_chunks == 50
    assert heads[0].kept.tolist() == [400, 401, 402]


@pytest.mark.parametrize("length", [640, 643, 647])
def test_what_does_not_fill_a_chunk_costs_at_most_one(length):
    heads, details = planned(HybridKV(budget_ratio=0.2, theta=math.inf), length=length)
    assert details["budgets"][0]["padded"] == 128
    assert 128 - 8 < heads[0].slots <= 0.2 * length


def test_group_reductions_order_the_scores():
    reduced = {
        rule: observations(HybridKV(budget_ratio=0.2, group_reduce=rule))[0].sparsity for rule in ("min", "mean", "max")
    }
    assert (reduced["min"] <= reduced["mean"]).all()
    assert (reduced["mean"] <= reduced["max"]).all()
    assert (reduced["min"] < reduced["max"]).all()


def test_quantile_is_taken_over_the_heads_of_the_prompt():
    _, details = planned(HybridKV(budget_ratio=0.2, theta_quantile=0.5))
    expected = torch.tensor(details["sparsity"][0]).quantile(0.5).item()
    assert details["budgets"][0]["theta"] == pytest.approx(expected)


@pytest.mark.parametrize("length", [5, 9, 33, 40, 47])
def test_tiny_prompts_are_planned(length):
    heads, _ = planned(HybridKV(budget_ratio=0.1), length=length, text=3)
    assert all(1 <= head.slots <= length for head in heads)
