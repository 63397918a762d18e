"""DuoAttention and RazorAttention: budgets, head scores, and the compensation entry."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcomp_eval import attach, make_method
from kvcomp_eval.budgets.full_heads import full_head_budgets
from kvcomp_eval.inputs import Rotation
from kvcomp_eval.methods.duoattention import attention_area
from kvcomp_eval.methods.razorattention import RazorAttention
from kvcomp_eval.scoring.echo import echo_scores
from kvcomp_eval.stores.heads import HeadPlan, HeadStore
from tests.test_oracle import STEPS


def test_whole_heads_are_those_that_the_budget_leaves():
    """f * 100 + (1 - f) * 20 = 40: a quarter of the heads."""
    assert full_head_budgets([3, 0, 1, 2], 100, 160, 20) == [20, 20, 20, 100]
    assert full_head_budgets([3, 0, 1, 2], 100, 163, 20) == [21, 21, 21, 100]
    assert full_head_budgets([0, 1, 2, 3], 100, 41, 20) == [11, 10, 10, 10]
    assert full_head_budgets([0, 1], 100, 200, 20) == [100, 100]


@settings(deadline=None)
@given(st.permutations(range(6)), st.integers(2, 300), st.integers(1, 80), st.data())
def test_totals_are_exact(ranked, length, short, data):
    total = data.draw(st.integers(6, 6 * length))
    budgets = full_head_budgets(ranked, length, total, short)
    assert sum(budgets) == total
    assert all(1 <= budget <= length for budget in budgets)
    ordered = [budgets[head] for head in ranked]
    assert ordered == sorted(ordered, reverse=True)


def no_rotation(tokens, dim):
    return Rotation(lambda q, k, cos, sin: (q, k), torch.ones(1, tokens, dim), torch.zeros(1, tokens, dim))


def test_area_of_uniform_attention_and_of_a_head_that_looks_at_its_neighbours():
    query, key = torch.randn(4, 8), torch.randn(2, 8)
    uniform = attention_area(query, key, no_rotation(100, 8), 0.35)
    torch.testing.assert_close(uniform, torch.full((4,), 50.5 / 100))
    # One fast pair and three that hardly turn: the query is nearest to its own key.
    angles = torch.arange(100.0)[:, None] * torch.tensor([0.03, 0, 0, 0])
    angles = torch.cat([angles, angles], dim=-1)[None]

    def turn(queries, keys, cos, sin):
        first, second = queries.chunk(2, -1)
        return queries * cos + torch.cat([-second, first], dim=-1) * sin, keys

    near = Rotation(turn, angles.cos(), angles.sin())
    pair = torch.tensor([[10.0, 0, 0, 0, 0, 0, 0, 0]])
    assert attention_area(pair, pair, near, 1.0) < 0.1
    assert attention_area(pair, -pair, near, 1.0) > 0.4


def test_echo_and_induction_find_the_token_and_its_successor():
    """Keys are one-hot in the place within the period; one head asks for its own place, the other for the next."""
    period, repeats = 5, 3
    place = torch.eye(period).repeat(repeats, 1)
    queries = 60 * torch.stack([place, place.roll(-1, 0)])
    first, second = echo_scores(queries, place[None], period, 1.0).T
    # The echo head finds itself too; in the third period also two periods back.
    assert first.tolist() == pytest.approx([(5 / 2 + 5 / 3) / 10, 0], abs=1e-4)
    # Alone up to row 8; the rows that ask for place 0 find one more.
    assert second.tolist() == pytest.approx([0, (4 + 1 / 2 + 4 / 2 + 1 / 3) / 10], abs=1e-4)


def test_echo_scores_equal_dense_attention():
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(heads, 21, 8, generator=generator) for heads in (4, 2))
    logits = queries @ keys.repeat_interleave(2, 0).transpose(1, 2) * 0.35
    weights = logits.masked_fill(torch.ones(21, 21).triu(1).bool(), float("-inf")).softmax(-1)
    for score, behind in zip(echo_scores(queries, keys, 7, 0.35), (7, 6), strict=True):
        expected = torch.stack([weights[:, row, row - behind] for row in range(7, 21)]).mean(0)
        torch.testing.assert_close(score, expected)


def test_echo_has_its_share_of_the_whole_heads():
    echo, induction = torch.arange(30.0), -torch.arange(30.0)
    order = RazorAttention().ranked(torch.stack([echo, induction]))
    assert sorted(order) == list(range(30))
    assert order[:7] == list(range(7))
    assert order.index(29) == 7
    assert order.index(28) == 22


@pytest.mark.parametrize("extra", [0, 70])
def test_compensation_vector(extra):
    """Exact here, since the evicted logits are equal; also after the slots have grown."""
    keys = torch.tensor([[[[0.0, 1], [0, 3], [1, 0]]]])
    values = torch.tensor([[[[1.0, 0], [3, 0], [0, 1]]]])
    store = HeadStore([HeadPlan(torch.tensor([2]), compensated=True)], keys, values, [0], reserve=1)
    assert store.kept_entries == 2
    far = torch.tensor([[[[-1e4, 0.0]]]])
    for _ in range(1 + extra):
        output = store.step(torch.tensor([[[[1.0, 0]]]]), far, far, 2**-0.5)
    torch.testing.assert_close(output[0, 0, 0], torch.tensor([0.993020, 0.503490]), atol=1e-5, rtol=0)


def test_compensated_heads_share_calls_by_length_only():
    torch.manual_seed(0)
    keys, values = torch.randn(2, 3, 20, 8), torch.randn(2, 3, 20, 8)
    plans = [HeadPlan(torch.arange(20 - n, 20), compensated=n < 20) for n in (6, 20, 7, 6, 7, 6)]
    store = HeadStore(plans, keys, values, [0, 0], reserve=2)
    assert sorted(group.members for group in store.groups) == [[0, 3, 5], [1], [2, 4]]
    queries, new = torch.randn(2, 6, 1, 8), torch.randn(2, 3, 1, 8)
    output = store.step(queries, new, new, 0.35)
    for row, plan in enumerate(plans):
        sample, head = divmod(row, 3)
        evicted = 20 - len(plan.kept)
        parts = [keys[sample, head, evicted:], new[sample, head]]
        weights = torch.ones(len(plan.kept) + 1)
        shown = [values[sample, head, evicted:], new[sample, head]]
        if evicted:
            parts.append(keys[sample, head, :evicted].mean(0, keepdim=True))
            shown.append(values[sample, head, :evicted].mean(0, keepdim=True))
            weights = torch.cat([weights, torch.tensor([float(evicted)])])
        for query in range(2):
            mass = weights * (torch.cat(parts) @ queries[sample, 2 * head + query, 0] * 0.35).exp()
            expected = mass @ torch.cat(shown) / mass.sum()
            torch.testing.assert_close(output[sample, 0, 2 * head + query], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["duoattention", "razorattention"])
@pytest.mark.parametrize("ratio", [0.5, 0.8])
def test_budget_is_exact_and_some_heads_are_whole(families, images, name, ratio):
    from tests.families import prompt_inputs

    model, processor = families["qwen2_5_vl"]
    inputs = prompt_inputs("qwen2_5_vl", processor, [[images[1]]], ["a long question " * 12])
    extra = {"period": 20} if name == "razorattention" else {}
    method = make_method(name, budget_ratio=ratio, sinks=2, recent=10, **extra)
    with attach(model, method) as session:
        model.generate(**inputs, **STEPS)
    report = session.last_report
    length = report.prompt_tokens[0]
    assert report.kept_entries == 6 * int(ratio * length + 0.5)
    assert 0 < report.details["budgets"][0].count(length) < 6
    assert "measured" not in report.parameters


def test_razor_measures_a_model_once_and_never_draws_visual_tokens(families):
    model, _ = families["qwen2_5_vl"]
    seen = []
    method = RazorAttention(budget_ratio=0.5, period=400, repeats=3)

    def read(probe, tokens):
        seen.append(tokens)
        return type("Cache", (), {"details": {"echo": [torch.ones(2, 2)] * 3}})

    measured = method.calibrated(model.config, read)
    assert measured.parameters() == method.parameters()
    assert measured.measured.shape == (2, 3, 2)
    tokens = seen[0][0]
    assert torch.equal(tokens[:400], tokens[800:])
    assert not {model.config.image_token_id, model.config.video_token_id} & set(tokens.tolist())
    config = dataclasses.replace(method, period=4000)
    config.calibrated(model.config, read)
    assert seen[1].shape == (1, 4096 // 3 * 3)
    with pytest.raises(RuntimeError, match="inside attach"):
        method.observe(None)
