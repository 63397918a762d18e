"""HybridKV by drift: what the first decode steps attended to outside of what a static head would keep."""

from __future__ import annotations

import math

import pytest
import torch

from kvcomp_eval import HybridKV, attach
from kvcomp_eval.compat import set_text_attention
from kvcomp_eval.methods.hybridkv import RehearsedHybridKV
from kvcomp_eval.methods.rehearsal import Rehearsal
from tests.methods.test_hybridkv import KV_HEADS, LAYERS, LENGTH, planned

ENTRIES, WINDOW, PROBE = 12, 4, 3
STEPS = {"max_new_tokens": 6, "do_sample": False}


def by_drift(**changes):
    settings = {"budget_entries": ENTRIES, "window": WINDOW, "chunk_size": 2, "theta_quantile": 0.5}
    return HybridKV(**settings | {"classify": "drift", "probe_steps": PROBE} | changes)


def report_of(model, inputs, method, **kwargs):
    with attach(model, method) as session:
        model.generate(**inputs, **STEPS | kwargs)
    return session.last_report


def test_drift_is_the_attention_outside_of_what_is_kept():
    attention = torch.tensor([[0.1, 0.2, 0.3, 0.1], [0.0, 0.5, 0.25, 0.05]])
    rehearsal = Rehearsal(((torch.zeros(2, 4), attention),), {})
    kept = [torch.tensor([0, 2]), torch.tensor([1])]
    torch.testing.assert_close(rehearsal.drift(0, 1, kept), torch.tensor([0.3, 0.3]))
    assert (rehearsal.drift(0, 0, kept) == 0).all()


def test_drift_equals_that_of_stock_attention_weights(family, make_inputs):
    _, model, _ = family
    inputs = make_inputs(1)
    # Without sparsity-dependent budgets all heads keep what a static head keeps at the mean budget.
    static = by_drift(classify="sparsity", theta_quantile=None, theta=-math.inf, alpha=1)
    with attach(model, static, trace=True) as session:
        model.generate(**inputs, **STEPS)
    kept = torch.stack([layer.trace[0][0] for layer in session.last_cache.packed_layers])
    assert (kept.sum(-1) == ENTRIES).all()
    set_text_attention(model, "eager")
    try:
        stock = model.generate(
            **inputs,
            max_new_tokens=PROBE + 1,
            min_new_tokens=PROBE + 1,
            do_sample=False,
            output_attentions=True,
            return_dict_in_generate=True,
        )
    finally:
        set_text_attention(model, "sdpa")
    steps = torch.stack([torch.stack([w[0, :, 0, : kept.shape[-1]] for w in step]) for step in stock.attentions[1:]])
    assert len(steps) == PROBE
    mean = steps.unflatten(2, (kept.shape[1], -1)).mean((0, 3))
    expected = (mean * ~kept).sum(-1).flatten()
    details = report_of(model, inputs, by_drift()).details
    assert details["drift"][0] == pytest.approx(expected.tolist(), abs=1e-5)
    steadiness = 1 - expected
    assert details["static"][0] == (steadiness >= steadiness.quantile(0.5)).tolist()


def test_rows_of_a_batch_drift_as_they_do_alone_also_where_one_ends_early(family, make_inputs):
    _, model, _ = family
    first = model.generate(**make_inputs(0), **STEPS)[0, -STEPS["max_new_tokens"] :]
    ends = {"eos_token_id": first[1].item(), "pad_token_id": 0}
    together = report_of(model, make_inputs(0, 1, 2), by_drift(), **ends).details
    for row in range(3):
        alone = report_of(model, make_inputs(row), by_drift(), **ends).details
        assert alone["rehearsal"]["steps"] == together["rehearsal"]["steps"] == PROBE
        assert together["drift"][row] == pytest.approx(alone["drift"][0], abs=1e-5)
        assert together["static"][row] == alone["static"][0]


@pytest.mark.parametrize("decoding", [{"num_beams": 3}, {"do_sample": True}, {"max_new_tokens": 2}])
def test_drift_does_not_depend_on_how_the_answer_is_decoded(family, make_inputs, decoding):
    _, model, _ = family
    plain = report_of(model, make_inputs(0, 1), by_drift()).details["drift"]
    other = report_of(model, make_inputs(0, 1), by_drift(), **decoding).details["drift"]
    torch.testing.assert_close(torch.tensor(other), torch.tensor(plain), atol=1e-5, rtol=0)


def test_the_report_tells_what_the_rehearsal_took(family, make_inputs):
    _, model, _ = family
    report = report_of(model, make_inputs(0, 1), by_drift())
    costs = report.details["rehearsal"]
    assert costs["steps"] == PROBE
    assert costs["device_bytes"] > report.full_bytes > report.device_bytes
    assert 0 < costs["seconds"] < report.prefill_seconds
    assert report.parameters["classify"] == "drift"
    assert "rehearsal" not in report.parameters


def test_a_prompt_must_be_rehearsed(family, make_inputs):
    _, model, _ = family
    inputs = make_inputs(0)
    with attach(model, by_drift()) as session, pytest.raises(RuntimeError, match="has to rehearse the prompt"):
        model(**inputs, past_key_values=session.new_cache(inputs["input_ids"], kwargs=inputs))


def test_steady_heads_are_static_whatever_their_sparsity():
    """Even KV heads look at the window alone; odd ones pay a tenth or (layer 2) a fifth to the first image token."""
    attention = torch.zeros(LAYERS, KV_HEADS, LENGTH)
    attention[:, 0, -1] = 0.9
    attention[:, 1, -1] = torch.tensor([0.8, 0.8, 0.7])
    attention[:, 1, 0] = torch.tensor([0.1, 0.1, 0.2])
    rehearsal = Rehearsal(tuple((layer,) for layer in attention), {"steps": 1})
    method = RehearsedHybridKV(budget_ratio=0.2, theta=0.85, classify="drift", rehearsal=rehearsal)
    heads, details = planned(method)
    assert 0 not in heads[1].kept
    assert details["drift"][0] == pytest.approx([0, 0.1, 0, 0.1, 0, 0.2])
    assert details["static"][0] == [True, True, True, True, True, False]
    assert [head.retrieval is None for head in heads] == details["static"][0]
    assert details["rehearsal"] == {"steps": 1}
    assert planned(HybridKV(budget_ratio=0.2, theta=0.7))[1]["static"][0] == [False, True] * LAYERS


@pytest.mark.parametrize(
    ("changes", "message"), [({"classify": "S"}, "classify='S'"), ({"probe_steps": 0}, "at least 1")]
)
def test_wrong_parameters_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        by_drift(**changes)
