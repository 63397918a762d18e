"""Free-running fidelity in the tables, against values worked out by hand."""

from __future__ import annotations

import pytest

from kvcomp_eval.compare.fidelity import AGREED, COCO, DIVERGENT, LENGTH, SAME, fidelity_values
from kvcomp_eval.compare.leaderboard import leaderboard
from kvcomp_eval.compare.report.tables import fidelity_table, task_table
from kvcomp_eval.compare.report.text import markdown
from kvcomp_eval.compare.results import group_cells, read_run
from tests.compare import synthetic

#: Of fourteen words, one token each, this many at the end are others.
CHANGED = {"full": [0] * 4, "snapkv @ 20 %": [0, 7, 14, 0]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    synthetic.write_run(folder, CHANGED)
    return read_run(folder)


def measures(board, name, scope=None):
    rows = board["tasks"][scope] if scope else board["summary"]
    return next(row for row in rows if row["name"] == name)["measures"]


@pytest.mark.parametrize("scope", [None, synthetic.TASK])
def test_measures_equal_those_worked_out_by_hand(run, scope):
    found = measures(leaderboard(run), "snapkv @ 20 %", scope)
    assert found[SAME]["value"] == 2 / 4
    assert found[AGREED]["value"] == (1 + 7 / 14 + 0 + 1) / 4
    assert found[LENGTH]["value"] == 1
    assert found[COCO]["value"] == pytest.approx((1 + 7 / 14 + 0 + 1) / 4)  # precision and recall are both 7 of 14
    assert (found[DIVERGENT]["value"], found[DIVERGENT]["documents"]) == ((7 + 0) / 2, 2)


def test_the_full_cache_never_diverges(run):
    found = measures(leaderboard(run), "full")
    assert DIVERGENT not in found
    assert [found[name]["value"] for name in (SAME, AGREED, COCO, LENGTH)] == [1, 1, 1, 1]


def test_seeds_are_averaged_document_by_document(tmp_path):
    synthetic.write_run(tmp_path, CHANGED, synthetic.config(seeds=[0, 1]))
    run = read_run(tmp_path)
    snapkv = next(cell for cell in group_cells(run) if cell.row.label == "snapkv")
    snapkv.records[1].answers[synthetic.TASK, 0] = synthetic.line(0, synthetic.answer(0, 7), 0.2)
    found = fidelity_values(snapkv)
    assert found[AGREED][synthetic.TASK, 0] == (1 + 7 / 14) / 2
    assert found[DIVERGENT][synthetic.TASK, 0] == 7  # of the one seed that differs


def test_the_compact_table_shows_them_and_the_task_tables_stay_short(run):
    board = leaderboard(run)
    table = fidelity_table(board)
    cells = dict(zip(table.columns, table.lines[1].cells, strict=True))
    assert (cells["same"], cells["agreed"], cells["diverges at"], cells["length"]) == ("50 %", "62 %", "3.5", "1.00")
    assert table.lines[0].cells[table.columns.index("diverges at")] == "-"
    assert "forced KL" not in table.columns
    assert task_table(board, synthetic.TASK).columns[-2:] == ["hit", "fidelity"]
    results = {"leaderboard": board, "config": run.config.model_dump(), "failed": {}, "unfinished": []}
    assert "## Fidelity" in markdown(results)
