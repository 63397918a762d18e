"""Analyses of drift traces: hand-computed figures, and the controller's law on a real trace."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from kvcomp_eval import attach, make_method
from kvcomp_eval.analysis import drift
from kvcomp_eval.cli import main


def frame(drifts, refreshed):
    """Two steps of two layers per prompt."""
    constant = {"tokens": 50, "tau": 0.1, "overlap": 1.0}
    rows = [
        constant | {"prompt": prompt, "step": i // 2, "layer": i % 2, "drift": value, "refreshed": flag}
        for prompt, pairs in enumerate(zip(drifts, refreshed, strict=True))
        for i, (value, flag) in enumerate(zip(*pairs, strict=True))
    ]
    return pd.DataFrame(rows)


THREE = frame(
    [[0.1, 0.3, 0.1, 0.3], [0.5, 0.5, 0.5, 0.5], [0.0, 0.0, 0.0, 0.2]], [[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]]
)


def test_by_prompt_and_by_tercile():
    prompts = drift.by_prompt(THREE)
    assert prompts["drift"].tolist() == pytest.approx([0.2, 0.5, 0.05])
    assert prompts["rate"].tolist() == [0.5, 1.0, 0.25]
    assert prompts["steps"].tolist() == [2, 2, 2]
    terciles = drift.by_tercile(prompts, pd.DataFrame({"rouge": [0.7, 0.9, 0.4]}))
    assert terciles.index.tolist() == ["low", "middle", "high"]
    assert terciles["rouge"].tolist() == [0.4, 0.7, 0.9]


def test_by_step_is_the_median_over_prompts_of_the_mean_over_layers():
    steps = drift.by_step(THREE)
    assert steps.index.tolist() == [0, 1]
    assert steps["prompts"].tolist() == [3, 3]
    assert steps["drift"].tolist() == pytest.approx([0.2, 0.2])  # of 0.2, 0.5, 0.0 and of 0.2, 0.5, 0.1
    assert steps["drift_low"].tolist() == pytest.approx([0.1, 0.15])
    assert steps["drift_high"].tolist() == pytest.approx([0.35, 0.35])
    assert steps["tau"].tolist() == [0.1, 0.1]
    assert steps["refreshed"].tolist() == pytest.approx([2 / 3, 0.5])


def test_correlation_is_of_ranks_and_nan_without_variation():
    assert drift.correlation([1, 2, 3, 4], [1, 4, 9, 100]).rho == pytest.approx(1)
    assert np.isnan(drift.correlation([1, 2, 3], [5, 5, 5]).rho)


def test_staleness():
    steps = [torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]), torch.tensor([[0.6, 0.1, 0.3], [0.1, 0.8, 0.1]])]
    assert drift.staleness(steps) == 0.5
    assert drift.staleness(steps, without_sink=True) == 0
    assert np.isnan(drift.staleness(steps[:1]))


@pytest.fixture
def trace(families, images, tmp_path):
    from tests.families import prompt_inputs

    model, processor = families["qwen2_5_vl"]
    path = tmp_path / "drift.parquet"
    method = make_method("rcr", budget_entries=9, window=4, rank=3, tau=0.3, trace=str(path))
    with attach(model, method):
        for row in range(3):
            inputs = prompt_inputs("qwen2_5_vl", processor, [[images[row]]], ["what is it?"])
            model.generate(**inputs, max_new_tokens=12, do_sample=False)
    method._trace_file.close()
    return path


def test_realised_rate_obeys_the_law(trace):
    beyond = drift.rate_beyond_law(drift.load(trace), rho=0.4, gain=0.05, tau=0.3)
    assert beyond.abs().max() < 1e-4


def test_command_prints_tables_and_writes_the_plot(trace, tmp_path, capsys):
    scores = tmp_path / "scores.csv"
    scores.write_text("name,rouge\na,0.1\nb,0.5\nc,0.3\n")
    plot = tmp_path / "drift.svg"
    assert main(["analyze", "drift", str(trace), "--scores", str(scores), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert "3 prompts, 99 layer-steps" in printed
    assert "rouge" in printed
    assert plot.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "is not a file; make one with method=rcr,trace"),
        (lambda path: pd.DataFrame({"a": [1]}).to_parquet(path), "is not a drift trace: it has no column prompt"),
    ],
)
def test_unusable_trace_is_one_clear_error(tmp_path, capsys, make, message):
    path = tmp_path / "x.parquet"
    make(path)
    assert main(["analyze", "drift", str(path)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
