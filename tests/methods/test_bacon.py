"""BACON on each backbone: identities, the trace between layers, unchanged budgets."""

from __future__ import annotations

import pytest
import torch

from kvcomp_eval import make_method
from tests.head_scores import made_up_scores
from tests.methods.prompts import kept, layers_of_a_prompt

BACKBONES = {"snapkv": {}, "pyramidkv": {"beta": 5}, "adakv": {"floor": 0.3, "normalize": True}}


@pytest.mark.parametrize("name", BACKBONES)
def test_gamma_zero_is_the_backbone(name):
    bacon = make_method("bacon", backbone=name, gamma=0, budget_ratio=0.3, **BACKBONES[name])
    assert kept(bacon) == kept(make_method(name, budget_ratio=0.3, **BACKBONES[name]))


@pytest.mark.parametrize("name", BACKBONES)
def test_budgets_are_the_backbones_and_selection_is_not(name):
    bacon = kept(make_method("bacon", backbone=name, budget_ratio=0.3, **BACKBONES[name]))
    plain = kept(make_method(name, budget_ratio=0.3, **BACKBONES[name]))
    assert [[len(head) for head in layer] for layer in bacon] == [[len(head) for head in layer] for layer in plain]
    assert bacon != plain


def test_window_of_one_is_the_backbone():
    """The last query is then the whole window."""
    assert kept(make_method("bacon", budget_ratio=0.3, window=1)) == kept(
        make_method("snapkv", budget_ratio=0.3, window=1)
    )


def test_persistence_looks_at_the_layers_below_only():
    without = kept(make_method("bacon", budget_ratio=0.3, persistence=0, gamma=5))
    with_trace = kept(make_method("bacon", budget_ratio=0.3, gamma=5))
    assert without[0] == with_trace[0]
    assert without[1:] != with_trace[1:]


@pytest.mark.parametrize(("layer", "expected"), [(0, None), (1, 1.0), (2, 1.5), (4, 2.5), (5, 3.5)])
def test_trace_is_the_mean_of_up_to_four_layers(monkeypatch, layer, expected):
    """Evidence of layer j is j + 1 everywhere, so persistence is a mean of such numbers."""
    seen = []

    class Calibration:
        def __init__(self, *_):
            pass

        def __call__(self, base, last, earlier, selected):
            seen.append(torch.stack(earlier).mean().item() if earlier else None)
            return base, torch.full_like(base, len(seen))

    monkeypatch.setattr("kvcomp_eval.methods.bacon.BoundaryCalibration", Calibration)
    method = make_method("bacon", budget_ratio=0.3)
    for view in layers_of_a_prompt(layers=6):
        method.observe(view)
    assert seen[layer] == expected


def test_head_scores_reach_the_sparsemm_backbone():
    with pytest.raises(ValueError, match="kvcomp-eval heads"):
        make_method("bacon", backbone="sparsemm")
    assert make_method("bacon", backbone="sparsemm", head_scores=made_up_scores())


def test_unknown_backbone_is_refused():
    with pytest.raises(ValueError, match="backbone='h2o' is not known; use one of snapkv, pyramidkv"):
        make_method("bacon", backbone="h2o")
