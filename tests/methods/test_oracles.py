"""The recording run and the selections that know the answer."""

from __future__ import annotations

import pytest
import torch

from kvcomp_eval import Full, attach, make_method
from kvcomp_eval.methods.oracle import Watched, recorder

STEPS = {"max_new_tokens": 8, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}


def test_recording_changes_nothing_and_sums_to_the_steps(family, make_inputs):
    _, model, _ = family
    inputs = make_inputs(1)
    full = attach_and_generate(model, inputs, Full())[0]
    watched, session = attach_and_generate(model, inputs, Watched())
    assert torch.equal(full.sequences, watched.sequences)
    record = recorder(session.last_cache, 0)
    assert len(record.mass) == 7
    torch.testing.assert_close(torch.stack(record.mass).sum(0), record.received)
    assert (record.received.sum(1) < 7).all()


def test_oracle_keeps_what_the_answer_attended_to(family, make_inputs):
    _, model, _ = family
    inputs = make_inputs(1)
    _, watched = attach_and_generate(model, inputs, Watched())
    _, session = attach_and_generate(model, inputs, make_method("prefill_oracle", budget_entries=9, window=4))
    prefix = session.last_cache.prompt.lengths[0] - 4
    for index, layer in enumerate(session.last_cache.packed_layers):
        received = recorder(watched.last_cache, index).received[:, :prefix]
        for head in range(len(received)):
            kept = layer.trace[0][0, head].nonzero().squeeze(1).tolist()
            assert set(kept[:5]) == set(received[head].topk(5).indices.tolist())
    assert session.last_report.method == "prefill_oracle"
    assert "scores" not in session.last_report.parameters


def test_oracle_refuses_batches_and_use_outside_generate(family, make_inputs):
    _, model, _ = family
    oracle = make_method("prefill_oracle", budget_entries=9, window=4)
    with attach(model, oracle), pytest.raises(ValueError, match="one prompt at a time, not 2"):
        model.generate(**make_inputs(0, 1), **STEPS)


def attach_and_generate(model, inputs, method):
    with attach(model, method, trace=True) as session:
        return model.generate(**inputs, **STEPS), session
