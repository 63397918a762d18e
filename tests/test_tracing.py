"""Traces of rate-controlled refresh: complete, consistent with the report, one file a run."""

from __future__ import annotations

import math

import pandas
import pytest
import torch

from kvcomp_eval import attach, make_method
from kvcomp_eval.tracing import COLUMNS

STEPS = {"max_new_tokens": 9, "do_sample": False}


def test_trace_holds_every_step_of_every_layer(family, make_inputs, tmp_path):
    _, model, _ = family
    path = tmp_path / "drift.parquet"
    method = make_method("rcr", budget_entries=9, window=4, rank=3, tau=0.3, trace=str(path))
    with attach(model, method):
        model.generate(**make_inputs(1), **STEPS)
        model.generate(**make_inputs(0, 2), **STEPS)
    method._trace_file.close()
    frame = pandas.read_parquet(path)
    assert tuple(frame.columns) == COLUMNS
    assert frame.groupby("prompt").size().tolist() == [8 * 3] * 3
    assert frame[frame["prompt"] == 0]["step"].tolist() == [step for step in range(8) for _ in range(3)]
    assert frame["drift"].between(0, 1).all()
    assert ((frame["drift"] > frame["tau"]) == (frame["refreshed"] == 1)).all()
    assert (frame.loc[frame["refreshed"] == 0, "overlap"] == 1).all()
    for _, prompt in frame.groupby("prompt"):
        updates = prompt["refreshed"].to_numpy()[:-1].cumsum() - 0.4 * torch.arange(1, len(prompt)).numpy()
        assert prompt["tau"].to_numpy()[1:] == pytest.approx([0.3 * math.exp(0.05 * u) for u in updates], rel=1e-4)


def test_tracing_does_not_change_the_answer(family, make_inputs, tmp_path):
    _, model, _ = family
    outputs = []
    for extra in ({}, {"trace": str(tmp_path / "drift.parquet")}):
        with attach(model, make_method("rcr", budget_entries=9, window=4, tau=0.3, **extra)):
            outputs.append(model.generate(**make_inputs(1), **STEPS))
    assert torch.equal(*outputs)


def test_existing_file_is_refused(tmp_path):
    path = tmp_path / "drift.parquet"
    path.write_text("")
    with pytest.raises(FileExistsError, match="exists already; give another file name"):
        make_method("rcr", trace=str(path))
