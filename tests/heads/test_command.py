"""``kvcomp-eval heads``: a file that sparsemm reads, runs that continue, and clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from kvcomp_eval import attach, demo, make_method
from kvcomp_eval.budgets.head_scores import HeadScores
from kvcomp_eval.cli import main
from kvcomp_eval.heads import identify
from kvcomp_eval.heads.command import weights_hash
from tests.families import save


@pytest.fixture
def measure(tmp_path):
    """Run the command on the embedded model; returns the file's content."""

    def run(pages, *more):
        output = tmp_path / "heads.json"
        arguments = ["--model", "demo", "--output", str(output), "--pages", str(pages), "--max-new-tokens", "96"]
        assert main(["heads", *arguments, *more]) == 0
        return json.loads(output.read_text())

    run.output = tmp_path / "heads.json"
    run.journal = tmp_path / "heads.pages.jsonl"
    return run


@pytest.fixture
def scored_pages(monkeypatch):
    """Counts the pages that are scored."""
    counted = []
    original = identify.score_page

    def score(model, processor, page, max_new_tokens):
        counted.append(page)
        return original(model, processor, page, max_new_tokens)

    monkeypatch.setattr(identify, "score_page", score)
    return counted


def test_file_says_what_was_measured_and_how(measure, capsys):
    content = measure(2)
    assert np.array(content.pop("scores")).shape == (6, 4)
    assert content.pop("matched_tokens") > 0
    assert -1 <= content.pop("split_half_rank_correlation") <= 1
    assert content == {
        "model": "demo",
        "revision": weights_hash(demo.path()),
        "family": "qwen2_5_vl",
        "seed": 0,
        "max_new_tokens": 96,
        "pages": 2,
    }
    captured = capsys.readouterr()
    assert "split_half_rank_correlation" in captured.out
    assert "pages: 100%" in captured.err


def test_interrupted_run_continues_at_the_next_page(measure, scored_pages):
    whole = measure(4)
    lines = measure.journal.read_text().splitlines(keepends=True)
    measure.journal.write_text("".join(lines[:3]) + lines[3][:40])  # two pages, and a third torn by a kill
    measure.output.unlink()
    scored_pages.clear()
    assert measure(4) == whole
    assert len(scored_pages) == 2
    assert measure.journal.read_text() == "".join(lines)


def test_more_pages_add_to_those_that_are_there(measure, scored_pages):
    measure(1)
    assert measure(3)["pages"] == 3
    assert len(scored_pages) == 3


def test_run_with_other_settings_is_refused(measure):
    measure(1)
    with pytest.raises(SystemExit, match=r"heads.pages.jsonl was begun with seed 0, now 1: delete it, or choose"):
        measure(1, "--seed", "1")


def test_no_pages_are_refused(measure):
    with pytest.raises(SystemExit, match=r"--pages=0 must be at least 1"):
        measure(0)


def test_model_that_cannot_read_is_refused(tmp_path):
    folder = save("qwen2_5_vl", tmp_path / "model")
    command = ["heads", "--model", str(folder), "--output", str(tmp_path / "heads.json"), "--pages", "1"]
    with pytest.raises(SystemExit, match=r"does not read such pages"):
        main([*command, "--max-new-tokens", "2"])


def test_cli_starts_without_torch():
    code = "import sys, kvcomp_eval.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_shipped_scores_are_those_of_the_shipped_weights():
    source = HeadScores.read("demo").source
    assert source["revision"] == weights_hash(demo.path()), (
        "the demo model has new weights: run `kvcomp-eval heads --model demo --output heads.json`, "
        "and copy heads.json to kvcomp_eval/demo/head_scores.json"
    )
    assert source["split_half_rank_correlation"] > 0.8


def test_demo_model_runs_on_its_shipped_scores():
    from kvcomp_eval.demo.evaluate import Demo
    from kvcomp_eval.demo.heldout import document

    loaded = Demo.load(demo.path())
    inputs = loaded.inputs(document("vqa", 0))
    with attach(loaded.model, make_method("sparsemm", head_scores="demo", budget_ratio=0.2)) as session:
        loaded.model.generate(**inputs, max_new_tokens=4)
    length = inputs["input_ids"].shape[1]
    assert session.last_report.kept_entries == 6 * 2 * round(0.2 * length)
    assert session.last_report.details["head_scores"]["model"] == "demo"
