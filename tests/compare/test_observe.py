"""Times, peaks and positions of a call are those of its answer, not of a rehearsal before it."""

from __future__ import annotations

import pytest

from kvcomp_eval import attach, make_method
from kvcomp_eval.compare.observe import CallObserver
from tests.families import FAMILIES, images, prompt_inputs, shared

STEPS = 3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rehearsal_is_not_the_answer(family):
    model, processor = shared(family)
    inputs = prompt_inputs(family, processor, [images(1)], ["what is it?"])
    seen = []
    settings = ({}, {"classify": "drift", "theta_quantile": 0.5, "probe_steps": 5})
    for parameters in settings:
        with attach(model, make_method("hybridkv", budget_ratio=0.9, **parameters)), CallObserver(model) as observer:
            model.generate(**inputs, max_new_tokens=STEPS + 1, min_new_tokens=STEPS + 1, do_sample=False)
        seen.append((observer.positions(), observer.figures()))
    (plain, _), (rehearsed, figures) = seen
    assert rehearsed == plain
    assert len(figures["step_us"]) == STEPS
    assert figures["prefill_seconds"] > 0
