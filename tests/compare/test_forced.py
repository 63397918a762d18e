"""Teacher-forced measures of a comparison: real walks on the demo model, journaled like answers."""

from __future__ import annotations

import json

import pytest
import torch

from kvcomp_eval import Full, attach, make_method
from kvcomp_eval.compare.journal import journal_files, read_lines
from kvcomp_eval.compare.leaderboard import leaderboard
from kvcomp_eval.compare.record import read_records
from kvcomp_eval.compare.report.tables import fidelity_table
from kvcomp_eval.compare.results import read_run
from kvcomp_eval.demo import path
from kvcomp_eval.demo.evaluate import Demo
from kvcomp_eval.demo.heldout import document
from kvcomp_eval.metrics.fidelity import forced_logits, teacher_forced
from tests.compare.test_run import TASK, run

SETTINGS = {
    "forced": 2,
    "methods": ["snapkv"],
    "budgets": [0.06],
    "guards": {"identity": 0, "leak": False, "positions": False},
    "tasks": [{"task": TASK, "limit": 3, "metric": "accuracy"}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("forced")
    assert run(found, **SETTINGS) == []
    return found


def records(folder):
    """Row name -> record."""
    return {record.cell.row.name: record for record in read_records(journal_files(folder)).values()}


def test_figures_equal_a_direct_computation(folder):
    demo, found = Demo.load(path()), records(folder)
    assert set(found["snapkv @ 6 %"].forced) == {(TASK, 0), (TASK, 1)}
    for (_, index), line in found["snapkv @ 6 %"].forced.items():
        tokens = found["full"].answers[TASK, index]["tokens"]
        inputs, logits = demo.inputs(document("vqa", index)), []
        for method in (Full(), make_method("snapkv", budget_ratio=0.06)):
            with torch.inference_mode(), attach(demo.model, method):
                logits.append(forced_logits(demo.model, inputs, tokens))
        expected = teacher_forced(*logits, tokens)
        assert line["length"] == len(tokens)
        for name in ("kl", "top1_agreement", "nll_difference"):
            assert line[name] == pytest.approx(getattr(expected, name), rel=1e-4, abs=1e-7)
    assert any(line["kl"] > 1e-4 for line in found["snapkv @ 6 %"].forced.values())


def test_the_full_cache_against_itself_is_exactly_faithful(folder):
    for line in records(folder)["full"].forced.values():
        assert (line["kl"], line["top1_agreement"], line["nll_difference"]) == (0, 1, 0)


def test_tables_hold_their_means(folder):
    lines = records(folder)["snapkv @ 6 %"].forced.values()
    board = leaderboard(read_run(folder))
    for rows in (board["summary"], board["tasks"][TASK]):
        measures = next(row for row in rows if row["label"] == "snapkv")["measures"]
        assert measures["forced KL"]["value"] == pytest.approx(sum(line["kl"] for line in lines) / 2)
        assert measures["forced KL"]["documents"] == 2
        assert measures["forced top-1"]["value"] == pytest.approx(sum(line["top1_agreement"] for line in lines) / 2)
    table = fidelity_table(board)
    assert table.columns[-3:] == ["forced KL", "top-1", "NLL diff."]
    assert table.lines[0].cells[-3:] == ["0.000 [0.00, 0.00]", "1.000 [1.00, 1.00]", "0.000 [0.00, 0.00]"]
    assert "to 2 documents" in table.legend


def test_an_interrupted_cell_walks_only_what_is_missing(folder, tmp_path):
    kept = list(read_lines(folder / "journal.jsonl"))
    walks = [line for line in kept if line["kind"] == "forced" and line["cell"].startswith("snapkv")]
    scores = next(line for line in kept if line["kind"] == "scores" and line["cell"] == walks[1]["cell"])
    text = "".join(json.dumps(line) + "\n" for line in kept if line not in (scores, walks[1]))
    (tmp_path / "journal.jsonl").write_text(text)
    assert run(tmp_path, **SETTINGS) == []
    added = list(read_lines(tmp_path / "journal.jsonl"))[text.count("\n") :]
    assert [line["kind"] for line in added] == ["run", "forced", "scores"]
    assert added[1] == walks[1]


def test_batches_walk_one_document_at_a_time(folder, tmp_path):
    assert run(tmp_path, **SETTINGS, batch_size=2) == []
    assert {name: record.forced for name, record in records(tmp_path).items()} == {
        name: record.forced for name, record in records(folder).items()
    }


def test_an_empty_answer_is_left_out(tmp_path, monkeypatch):
    from kvcomp_eval.compare.forced import ForcedWalks, Uncompressed

    answer = ForcedWalks._answer

    def empty_first(self, request):
        if request.args[3] == 0:
            return Uncompressed([self._wrapper.eot_token_id], torch.zeros(1, 5))
        return answer(self, request)

    monkeypatch.setattr(ForcedWalks, "_answer", empty_first)
    assert run(tmp_path, **SETTINGS) == []
    assert [set(record.forced) for record in records(tmp_path).values()] == [{(TASK, 1)}] * 2


def test_answers_name_the_pictures_that_they_are_about(folder):
    found = [line["visuals"] for line in records(folder)["snapkv @ 6 %"].answers.values()]
    assert [len(visuals) for visuals in found] == [document("vqa", index)["images"] for index in range(3)]
    assert len({visual for visuals in found for visual in visuals}) == sum(map(len, found))
    assert found == [line["visuals"] for line in records(folder)["full"].answers.values()]
