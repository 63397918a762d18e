"""Values, intervals, bands of equal bytes, ranks and groups, on made-up answers."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from kvcomp_eval.compare.config import ConfigError
from kvcomp_eval.compare.leaderboard import FIDELITY, SAME, SCORE, band_of, leaderboard
from kvcomp_eval.compare.report.answer import answers
from kvcomp_eval.compare.report.tables import summary_table
from kvcomp_eval.compare.report.text import comma_separated, markdown
from kvcomp_eval.compare.results import read_run
from kvcomp_eval.compare.significance import Measure, add_measure
from kvcomp_eval.metrics.rouge import rouge_l
from tests.compare import synthetic

CHANGED = {
    "full": [0] * 12,
    "snapkv @ 20 %": [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2],
    "snapkv @ 10 %": [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5],
    "random @ 20 %": [7, 7, 8, 8, 9, 9, 7, 7, 8, 8, 9, 9],
    "random @ 10 %": [0, 0, 0, 0, 1, 2, 2, 3, 3, 4, 4, 5],
}


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    synthetic.write_run(folder, CHANGED)
    return leaderboard(read_run(folder))


def row(board, name, scope="summary"):
    rows = board[scope] if scope == "summary" else board["tasks"][scope]
    return next(found for found in rows if found["name"] == name)


def test_measures_are_the_means_over_documents(board):
    measures = row(board, "snapkv @ 20 %")["measures"]
    words = CHANGED["snapkv @ 20 %"]
    fidelity = [rouge_l(synthetic.answer(i, n), synthetic.answer(i)) for i, n in enumerate(words)]
    assert measures[FIDELITY]["value"] == pytest.approx(np.mean(fidelity))
    assert measures[SAME]["value"] == pytest.approx(9 / 12)
    assert measures[SCORE]["value"] == pytest.approx(9 / 12)
    assert measures[SCORE]["vs_full"]["value"] == pytest.approx(-3 / 12)
    full = row(board, "full")["measures"]
    assert (full[FIDELITY]["low"], full[FIDELITY]["value"], full[FIDELITY]["high"]) == (1, 1, 1)


def test_rows_are_ranked_inside_bands_of_equal_bytes_only(board):
    ranks = {found["name"]: found["rank"] for found in board["summary"]}
    assert ranks == {"full": None, "snapkv @ 20 %": 1, "random @ 20 %": 2, "snapkv @ 10 %": 2, "random @ 10 %": 1}
    assert row(board, "snapkv @ 20 %")["band"] == row(board, "random @ 20 %")["band"]
    assert row(board, "snapkv @ 20 %")["band"] != row(board, "snapkv @ 10 %")["band"]


def test_clearly_worse_rows_fall_into_another_group_and_close_ones_do_not(board):
    groups = {found["name"]: found["measures"][FIDELITY].get("group") for found in board["summary"]}
    assert (groups["snapkv @ 20 %"], groups["random @ 20 %"]) == ("a", "b")
    assert groups["snapkv @ 10 %"] == groups["random @ 10 %"] == "a"
    against = row(board, "random @ 20 %")["measures"][FIDELITY]["vs_reference"]
    assert against["high"] < 0
    assert against["p_holm"] < 0.05


@pytest.mark.parametrize(
    ("size", "band"), [(100.0, 0), (101.9, 0), (98.1, 0), (102.1, None), (97.9, None), (200, None)]
)
def test_a_band_reaches_two_percent_from_the_reference(size, band):
    assert band_of([100.0, size], [True, False]) == [0, band]


def test_the_nearest_reference_makes_the_band():
    assert band_of([100.0, 102.0, 101.4], [True, True, False]) == [0, 1, 1]


def test_rows_of_other_bytes_and_invalid_rows_have_no_rank(tmp_path):
    made = synthetic.config(methods=["snapkv", {"method": "random", "budgets": [0.3]}])
    synthetic.write_run(tmp_path, {"full": [0] * 4, "snapkv @ 20 %": [0] * 4, "random @ 30 %": [0] * 4}, made)
    board = leaderboard(read_run(tmp_path))
    assert (row(board, "random @ 30 %")["rank"], row(board, "random @ 30 %")["band"]) == (None, None)
    assert answers(board)[-1] == (
        "Not ranked, since no row of the reference method holds as many bytes: "
        "random (a reference, not for use) at 29.3 KiB (30.0 %): fidelity 1.000 [1.00, 1.00]."
    )
    invalid = tmp_path / "invalid"
    synthetic.write_run(invalid, {"full": [0] * 4, "snapkv @ 20 %": [0] * 4}, invalid=["bytes: 2.000 of the planned"])
    found = row(leaderboard(read_run(invalid)), "snapkv @ 20 %")
    assert (found["rank"], found["invalid"]) == (None, ["bytes: 2.000 of the planned"])


def test_what_a_valid_row_holds_beside_its_budget_stands_beside_it(tmp_path):
    words = "by design holds 0.59 of its budget, index not counted"
    synthetic.write_run(tmp_path, {"full": [0] * 4, "snapkv @ 20 %": [0] * 4}, departures=[words])
    board = leaderboard(read_run(tmp_path))
    assert row(board, "snapkv @ 20 %")["rank"] == 1
    assert {line.note for line in summary_table(board).lines} == {words}


def test_where_lower_is_better_the_lowest_ranks_first(tmp_path):
    synthetic.write_run(tmp_path, CHANGED, higher_is_better={"hit": False})
    board = leaderboard(read_run(tmp_path))
    assert row(board, "random @ 20 %", synthetic.TASK)["rank"] == 1
    assert row(board, "random @ 20 %", synthetic.TASK)["measures"]["hit"]["group"] == "a"
    assert row(board, "snapkv @ 20 %", synthetic.TASK)["measures"]["hit"]["group"] == "b"
    assert SCORE not in row(board, "full")["measures"]  # nothing sensible to average


def test_a_metric_that_is_no_mean_over_documents_has_no_interval(tmp_path):
    synthetic.write_run(tmp_path, CHANGED, aggregated={"hit,none": 0.123, "cider,none": 1.5})
    measures = row(leaderboard(read_run(tmp_path)), "snapkv @ 20 %", synthetic.TASK)["measures"]
    assert measures["hit"] == measures["hit"] | {"value": 0.123, "low": None, "documents": None}
    assert measures["cider"]["value"] == 1.5


def test_an_unknown_main_metric_is_an_error_that_lists_what_there_is(tmp_path):
    made = synthetic.config(tasks=[{"task": synthetic.TASK, "metric": "anls"}])
    synthetic.write_run(tmp_path, {"full": [0] * 3}, made)
    with pytest.raises(ConfigError, match="made_up has no metric 'anls'; it has hit"):
        leaderboard(read_run(tmp_path))


def test_published_figures_stand_beside_ours(tmp_path):
    table = {"source": "a paper, Table 1", "columns": ["made_up hit"], "rows": {"snapkv @ 20 %": [80]}, "scale": 0.01}
    made = synthetic.config(paper=[table])
    synthetic.write_run(tmp_path, CHANGED, made)
    run = read_run(tmp_path)
    board = leaderboard(run)
    results = {"leaderboard": board, "config": made.model_dump(), "failed": {}, "unfinished": []}
    lines = [line for line in markdown(results).splitlines() if "a paper, Table 1" in line]
    assert len(lines) == 1
    assert lines[0].startswith("| snapkv | 20 % |")
    assert "0.8 (a paper, Table 1), ours -0.05, inside our interval" in lines[0]


def test_rows_of_one_budget_but_other_bytes_are_compared_but_not_ranked():
    rows = [{"band": band, "anchor": 0, "budget": 0.2, "measures": {}} for band in (0, None)]
    add_measure(rows, Measure("m", [{"a": 0.0, "b": 1.0}, {"a": 1.0, "b": 1.0}]))
    assert rows[1]["measures"]["m"]["vs_reference"]["value"] == 0.5
    assert "group" not in rows[1]["measures"]["m"]
    assert rows[0]["measures"]["m"]["group"] == "a"


def test_measures_are_taken_over_the_documents_that_all_rows_have():
    rows = [{"band": 0, "anchor": 0, "budget": budget, "measures": {}} for budget in (0.2, 0.2)]
    add_measure(rows, Measure("m", [{"a": 0.0, "b": 1.0, "c": 1.0}, {"b": 0.0, "c": 1.0}]))
    assert [found["measures"]["m"]["value"] for found in rows] == [1.0, 0.5]
    assert {found["measures"]["m"]["documents"] for found in rows} == {2}


def test_the_answer_names_the_best_row_of_each_band_and_its_equals(board):
    first, second = answers(board)
    assert first.startswith("At 19.5 KiB per prompt (20.0 % of the full cache), snapkv stays closest")
    assert first.endswith("Significantly worse: random.")
    assert "random (a reference, not for use) stays closest" in second
    assert "Not distinguishable from it: snapkv." in second


def test_the_csv_holds_every_number_of_the_leaderboard(board):
    lines = list(csv.DictReader(io.StringIO(comma_separated({"leaderboard": board}))))
    found = {(line["scope"], line["method"], line["budget"], line["measure"]): float(line["value"]) for line in lines}
    for scope, rows in [("all", board["summary"]), *board["tasks"].items()]:
        for entry in rows:
            for name, measure in entry["measures"].items():
                budget = "" if entry["budget"] is None else str(entry["budget"])
                assert found.pop((scope, entry["label"], budget, name)) == measure["value"]
    assert found == {}
