"""SparseMM: identities with SnapKV, exact totals over the model, and its scores' file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kvcomp_eval import SnapKV, attach, make_method
from kvcomp_eval.methods.base import LayerPrefill
from tests.head_scores import made_up_scores

LAYERS, HEADS, KV_HEADS, LENGTH = 4, 6, 3, 300


def layer(index, length=LENGTH):
    generator = torch.Generator().manual_seed(index)
    return LayerPrefill(
        layer=index,
        num_layers=LAYERS,
        queries=2 * torch.randn(HEADS, length, 16, generator=generator),
        keys=torch.randn(KV_HEADS, length, 16, generator=generator),
        values=torch.randn(KV_HEADS, length, 16, generator=generator),
        visual=torch.zeros(length, dtype=torch.bool),
        scaling=0.25,
    )


def kept(method, length=LENGTH):
    return [[head.kept.tolist() for head in method.observe(layer(i, length))] for i in range(LAYERS)]


def sparsemm(path=None, **parameters):
    return make_method("sparsemm", head_scores=path or made_up_scores(LAYERS, HEADS), **parameters)


@pytest.fixture
def scores_file(tmp_path):
    def write(scores):
        path = tmp_path / "heads.json"
        path.write_text(json.dumps({"scores": scores}))
        return str(path)

    return write


def test_uniform_scores_are_snapkv(scores_file):
    uniform = sparsemm(scores_file([[0.25] * HEADS] * LAYERS), budget_ratio=0.3)
    assert kept(uniform) == kept(SnapKV(budget_ratio=0.3))


def test_whole_uniform_part_is_snapkv():
    assert kept(sparsemm(ratio=1, budget_ratio=0.3)) == kept(SnapKV(budget_ratio=0.3))


def test_uneven_scores_are_not_snapkv():
    """Without this, the identities could hold because the scores are not used."""
    assert kept(sparsemm(budget_ratio=0.3)) != kept(SnapKV(budget_ratio=0.3))


def test_scaling_the_scores_changes_nothing(scores_file):
    scores = json.loads(Path(made_up_scores(LAYERS, HEADS)).read_text())["scores"]
    before = kept(sparsemm(budget_ratio=0.3))
    assert kept(sparsemm(scores_file([[7 * score for score in row] for row in scores]), budget_ratio=0.3)) == before


@pytest.mark.parametrize("ratio", [0.12, 0.2, 0.4, 0.8])
def test_total_is_exact_and_the_window_stays(ratio):
    heads = [head for heads in kept(sparsemm(budget_ratio=ratio)) for head in heads]
    assert sum(map(len, heads)) == LAYERS * KV_HEADS * round(ratio * LENGTH)
    window = list(range(LENGTH - 32, LENGTH))
    assert all(head[-32:] == window and head == sorted(set(head)) for head in heads)


def test_official_rounding_loses_what_a_focused_head_cannot_use(scores_file):
    path = scores_file([[1.0] + [0.0] * (HEADS - 1)] + [[0.0] * HEADS] * (LAYERS - 1))
    sizes = [len(head) for heads in kept(sparsemm(path, budget_ratio=0.4, official=True)) for head in heads]
    least = int((120 - 32) * 0.1) + 32
    assert sizes == [LENGTH] + [least] * (LAYERS * KV_HEADS - 1)


@pytest.mark.parametrize("budget", [{"budget_ratio": 0.3}, {"budget_ratio": 1.0}])
def test_scores_of_another_model_are_refused(family, make_inputs, budget):
    _, model, _ = family
    method = sparsemm(made_up_scores(2, 8), **budget)
    refused = pytest.raises(ValueError, match=r"2 layers of 8 query heads, but the model has 3 of 8")
    with refused, attach(model, method):
        model.generate(**make_inputs(1), max_new_tokens=2)


def test_report_says_where_the_scores_come_from(family, make_inputs, tmp_path):
    _, model, _ = family
    path = tmp_path / "heads.json"
    path.write_text(json.dumps({"scores": torch.rand(3, 8).tolist(), "model": "tiny", "pages": 5}))
    with attach(model, sparsemm(str(path), budget_ratio=0.3, window=4)) as session:
        model.generate(**make_inputs(1), max_new_tokens=2)
    assert session.last_report.details["head_scores"] == {"model": "tiny", "pages": 5}


def test_missing_scores_are_refused_when_the_method_is_made():
    with pytest.raises(ValueError, match=r"`kvcomp-eval heads --model"):
        make_method("sparsemm", budget_ratio=0.1)


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_ratio_outside_its_range_is_refused(ratio):
    with pytest.raises(ValueError, match=f"ratio={ratio} must lie between 0 and 1"):
        sparsemm(ratio=ratio)
