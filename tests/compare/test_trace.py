"""Traced runs of the demo model: same answers and fingerprints, a file per start, and what they hold."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import yaml

from kvcomp_eval.compare.config import load_config
from kvcomp_eval.compare.record import read_records
from kvcomp_eval.compare.report.behaviour import behaviour
from kvcomp_eval.compare.results import read_run
from kvcomp_eval.compare.runner import Runner

GRID = {
    "name": "traced",
    "model": {"family": "qwen2_5_vl", "args": {"pretrained": "demo"}},
    "methods": [{"method": "hybridkv", "label": "hybridkv", "parameters": {"theta_quantile": 0.5}}, "rcr"],
    "budgets": [0.2],
    "tasks": [{"task": "kvcomp_demo_vqa", "limit": 2}],
    "guards": {"identity": 1, "bytes_tolerance": None},
}


def run(folder, trace):
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(GRID | {"trace": trace}))
    with Runner.in_folder(load_config(path), folder) as runner:
        assert runner.run(quiet=True) == []
    return read_records([folder / "journal.jsonl"])


def of(method, records):
    """The record of a method."""
    return next(record for key, record in records.items() if key.startswith(method))


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    return folder, run(folder, trace=True)


def test_tracing_changes_neither_answers_nor_fingerprints(traced, tmp_path):
    plain = run(tmp_path, trace=False)
    for key, record in traced[1].items():
        assert plain[key].fingerprint == record.fingerprint
        assert plain[key].traces == []
        for place, line in record.answers.items():
            assert plain[key].answers[place]["tokens"] == line["tokens"]
            assert "heads" not in plain[key].answers[place]
    assert not (tmp_path / "traces").exists()


def test_answers_have_their_heads_and_guards_none(traced):
    for record in traced[1].values():
        for line in record.answers.values():
            assert sum(map(sum, line["heads"]["entries"])) == line["report"]["kept_entries"]
        assert all("heads" not in line for line in record.guard_answers.values())
    for line in of("hybridkv", traced[1]).answers.values():
        static, sparsity = line["heads"]["static"], line["heads"]["sparsity"]
        assert len(static) == len(sparsity) == 12
        assert max(score for score, flag in zip(sparsity, static, strict=True) if not flag) <= min(
            score for score, flag in zip(sparsity, static, strict=True) if flag
        )


def test_only_answers_are_in_the_file_of_the_method_that_has_drift(traced):
    rcr = of("rcr", traced[1])
    (path,) = rcr.traces
    frame = pd.read_parquet(path)
    steps = sorted(len(line["tokens"]) - 1 for line in rcr.answers.values())
    assert sorted(frame.groupby("prompt")["step"].max() + 1) == steps
    assert [file.name for file in (traced[0] / "traces").iterdir()] == [path.name]
    found = behaviour(read_run(traced[0]))
    assert found["drift"].keys() == {"rcr @ 20 %"}
    assert found["drift"]["rcr @ 20 %"]["drift"] == pytest.approx(frame["drift"].mean())
    assert found["drift"]["rcr @ 20 %"]["target"] == 0.4
    assert "hybridkv @ 20 %" in found["heads"]


def test_an_interrupted_cell_goes_on_in_another_file(traced, tmp_path):
    """The last answer and what came after it are missing, as after a kill; the kill's file was never finished."""
    lines = [json.loads(line) for line in (traced[0] / "journal.jsonl").read_text().splitlines()]
    answers = [index for index, line in enumerate(lines) if line["kind"] == "answer" and line["cell"].startswith("rcr")]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[: answers[-1]]))
    (unfinished,) = (traced[0] / "traces").iterdir()
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / unfinished.name).write_bytes(unfinished.read_bytes()[:50])
    rcr = of("rcr", run(tmp_path, trace=True))
    assert len(rcr.answers) == 2
    (path,) = rcr.traces
    assert path.name != unfinished.name
    assert pd.read_parquet(path)["prompt"].nunique() == 1
    assert behaviour(read_run(tmp_path))["drift"]["rcr @ 20 %"]["answers"] == 1
