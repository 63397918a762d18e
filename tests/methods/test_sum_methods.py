"""H2O, LOOK-M, MEDA and VL-Cache: golden vectors, identities and exact budgets."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from kvcomp_eval import make_method
from kvcomp_eval.budgets.layers import layer_budgets
from kvcomp_eval.methods import meda
from kvcomp_eval.methods.lookm import text_first
from kvcomp_eval.methods.vlcache import question_rows
from kvcomp_eval.scoring.columns import density_and_sums
from kvcomp_eval.selection import window_positions
from tests.methods.prompts import entries, kept, layers_of_a_prompt, plans

IMAGE = {"length": 200, "visual": slice(20, 170)}


def test_h2o_keeps_heavy_hitters_and_recent_tokens():
    received = torch.tensor([2.8, 0.75, 1.2, 0.55, 0.5, 0.2])
    assert window_positions(received[:4], 4, 6, 2).tolist() == [0, 2, 4, 5]


def test_normalised_sums_favour_early_tokens_less():
    def mean_position(**options):
        positions = kept(make_method("h2o", budget_ratio=0.2, recent_share=0, **options))
        return sum(map(sum, positions[0]))

    assert mean_position(normalize=True) > mean_position()


def test_rolling_plan_is_the_static_one_with_the_attention_received():
    static = plans(make_method("h2o", budget_ratio=0.2))
    rolling = plans(make_method("h2o", budget_ratio=0.2, decode="rolling"))
    for a, b in zip(static[0], rolling[0], strict=True):
        assert torch.equal(a.kept, b.kept)
        assert b.heavy_hitters.recent == 30
        assert b.heavy_hitters.prompt_length == 300
        assert len(b.heavy_hitters.received) == 60


RECEIVED = torch.tensor([[0.9, 0.4, 0.1, 0.3, 0.8, 0.2, 0.5, 0.6]])
TEXT = torch.tensor([0, 5, 7])


@pytest.mark.parametrize(
    ("important", "keep_all_text", "expected"),
    [(3, False, [0, 4, 5, 6, 7]), (1, False, [0, 6, 7]), (1, True, [0, 5, 6, 7])],
)
def test_lookm_text_prior_vectors(important, keep_all_text, expected):
    visual = torch.ones(8, dtype=torch.bool)
    visual[TEXT] = False
    positions = text_first(RECEIVED, visual, important + 2, 2, keep_all_text=keep_all_text)
    assert positions[0].tolist() == expected


def test_lookm_without_image_and_merge_is_h2o():
    plain = make_method("lookm", budget_ratio=0.2, merge="none")
    assert kept(plain) == kept(make_method("h2o", budget_ratio=0.2))
    assert kept(plain, **IMAGE) != kept(make_method("h2o", budget_ratio=0.2), **IMAGE)
    assert kept(make_method("lookm", budget_ratio=0.2, merge="none", text_prior=False), **IMAGE) == kept(
        make_method("h2o", budget_ratio=0.2), **IMAGE
    )


def test_lookm_official_can_exceed_the_budget_and_filters():
    official = make_method("lookm", budget_entries=20, merge="averaged", official=True)
    layer = plans(official, **IMAGE)[0]
    assert [len(head.kept) for head in layer] == [10 + 40] * 3
    assert layer[0].merge.filtered
    assert not plans(make_method("lookm", budget_entries=20, official=True), **IMAGE)[0][0].merge.filtered


@pytest.mark.parametrize(
    ("weights", "ratio", "official", "expected"),
    [
        (softmax([2, 1, 0.5, 0.5]), 0.2, False, [44, 16, 10, 10]),
        (softmax([6, 1, 1, 1]), 0.4, False, [100, 20, 20, 20]),
        (softmax([6, 1, 1, 1]), 0.4, True, [100, 1, 1, 1]),
        ([0.6, 0.3, 0.1, 0.2], 0.1, False, [20, 10, 3, 7]),
        ([0.97, 0.01, 0.01, 0.01], 0.4, True, [100, 2, 2, 2]),
        ([0.97, 0.01, 0.01, 0.01], 0.4, False, [100, 20, 20, 20]),
        ([1, 1, 1, 1], 0.3, False, [30, 30, 30, 30]),
    ],
)
def test_layer_budget_vectors(weights, ratio, official, expected):
    assert layer_budgets(list(weights), round(100 * ratio), 100, official) == expected


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 200), st.integers(0, 1000))
def test_layer_budgets_are_exact_within_bounds(weights, mean, beyond):
    budgets = layer_budgets(weights, mean, mean + beyond)
    assert sum(budgets) == len(weights) * mean
    assert all(1 <= budget <= mean + beyond for budget in budgets)
    order = sorted(range(len(weights)), key=weights.__getitem__)
    assert all(budgets[a] <= budgets[b] + 1 for a, b in itertools.pairwise(order))


def test_meda_with_equal_entropies_and_no_merge_is_lookm(monkeypatch):
    monkeypatch.setattr(meda, "cross_modal_entropy", lambda *_: torch.tensor(math.log(5)))
    method = make_method("meda", budget_ratio=0.2, merge="none")
    assert kept(method, **IMAGE) == kept(make_method("lookm", budget_ratio=0.2, merge="none"), **IMAGE)


def test_meda_gives_spread_out_layers_more():
    details = {}
    method = make_method("meda", budget_ratio=0.2, entropy="causal")
    views = layers_of_a_prompt(**IMAGE)
    plan = method.plan([method.observe(view) for view in views], details)
    spread, counts = details["layer_spread"][0], details["layer_entries"][0]
    assert counts.index(max(counts)) == spread.index(max(spread))
    assert [len(layer[0].kept) for layer in plan] == counts


@pytest.mark.parametrize(
    ("visual", "expected"),
    [
        ([0, 1, 1, 0, 0], [3, 4]),
        ([0, 1, 0, 1, 0], [4]),
        ([0, 0, 0, 0, 0], [2, 3, 4]),
        ([0, 0, 1, 1, 1], [2, 3, 4]),
    ],
)
def test_question_rows(visual, expected):
    assert question_rows(torch.tensor(visual, dtype=torch.bool), 3).tolist() == expected


def test_vlcache_with_equal_densities_chooses_as_snapkv(monkeypatch):
    """32 text tokens behind the image, no pooling: only the size of the always-kept tail differs."""
    prompt = {"length": 200, "visual": slice(20, 168)}

    def equally_dense(*given):
        return torch.tensor(0.5), density_and_sums(*given)[1]

    monkeypatch.setattr("kvcomp_eval.methods.vlcache.density_and_sums", equally_dense)
    method = make_method("vlcache", budget_entries=60)
    snapkv = make_method("snapkv", budget_entries=60, kernel=1)
    for ours, theirs in zip(kept(method, **prompt), kept(snapkv, **prompt), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            common = [p for p in a if p < 168]
            selected = [p for p in b if p < 168]
            assert set(selected) <= set(common) or set(common) <= set(selected)


@pytest.mark.parametrize("name", ["h2o", "lookm", "meda", "vlcache"])
@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.8, 1.0])
def test_total_is_exact(name, ratio):
    assert entries(make_method(name, budget_ratio=ratio), **IMAGE) == 4 * 3 * round(ratio * 200)
