"""The gate's verdicts: equal passes under any seed, clear losses fail, what cannot be compared is an error."""

from __future__ import annotations

import copy
import json
import xml.etree.ElementTree as ElementTree

import pytest

from kvcomp_eval.compare.config import ConfigError
from kvcomp_eval.compare.gate import INVALID, NOT_SHOWN, NOT_WORSE, WORSE, baseline_of, compare, read_baseline
from kvcomp_eval.compare.gate_report import headline, junit, markdown, power_note
from kvcomp_eval.compare.results import read_run
from tests.compare import synthetic

BEFORE = {"full": [0] * 12, "snapkv @ 20 %": [0, 0, 1, 0, 2, 0, 0, 3, 0, 0, 1, 0]}


@pytest.fixture
def run(tmp_path):
    """Write a run with this many changed words per document, and read it back."""
    count = iter(range(100))

    def made(words=None, **scores):
        folder = tmp_path / f"run{next(count)}"
        synthetic.write_run(folder, BEFORE | ({"snapkv @ 20 %": words} if words else {}), **scores)
        return read_run(folder)

    return made


@pytest.fixture
def baseline(run):
    return json.loads(json.dumps(baseline_of(run())))


def states(verdicts):
    return {(verdict.row, verdict.measure): verdict.state for verdict in verdicts}


def test_an_unchanged_run_passes_with_twenty_seeds(baseline, run):
    found = run()
    for seed in range(20):
        verdicts = compare(baseline, found, margin=0.0, seed=seed)
        assert {verdict.state for verdict in verdicts} == {NOT_WORSE}
        assert len(verdicts) == 4
    assert power_note(verdicts).startswith("No answer's value changed (12 documents")


def test_a_clear_loss_is_worse_with_twenty_seeds(baseline, run):
    found = run([7] * 12)
    for seed in range(20):
        verdicts = compare(baseline, found, margin=0.05, seed=seed)
        assert states(verdicts)["snapkv @ 20 %", "fidelity"] == WORSE
        assert states(verdicts)["snapkv @ 20 %", "main metric"] == WORSE
        assert states(verdicts)["full", "fidelity"] == NOT_WORSE


def test_a_gain_passes(baseline, run):
    assert set(states(compare(baseline, run([0] * 12), margin=0.0)).values()) == {NOT_WORSE}


def test_ups_and_downs_beyond_the_margin_are_not_shown_and_pass_a_wide_one(baseline, run):
    found = run([3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1, 0])
    assert states(compare(baseline, found, margin=0.001))["snapkv @ 20 %", "fidelity"] == NOT_SHOWN
    assert states(compare(baseline, found, margin=0.2))["snapkv @ 20 %", "fidelity"] == NOT_WORSE


def test_a_small_loss_within_the_margin_passes(baseline, run):
    found = run([0, 0, 1, 0, 2, 0, 0, 3, 0, 0, 2, 0])
    assert states(compare(baseline, found, margin=0.05))["snapkv @ 20 %", "fidelity"] == NOT_WORSE


def test_where_lower_is_better_a_rise_is_the_loss(run):
    lower = {"higher_is_better": {"hit": False}}
    baseline = baseline_of(run([7] * 12, **lower))
    verdicts = compare(baseline, run([0] * 12, **lower), margin=0.05)
    assert states(verdicts)["snapkv @ 20 %", "main metric"] == WORSE
    assert states(verdicts)["snapkv @ 20 %", "fidelity"] == NOT_WORSE


def test_a_violated_guard_fails_whatever_the_scores(baseline, run):
    verdicts = compare(baseline, run(invalid=["leak: document 0 was answered otherwise"]), margin=1.0)
    assert set(states(verdicts).values()) == {INVALID}
    assert "leak: document 0" in verdicts[0].sentence()


def test_missing_rows_other_documents_and_changed_tasks_cannot_be_compared(baseline, run):
    more = copy.deepcopy(baseline)
    more["rows"]["lookm @ 20 %"] = more["rows"]["snapkv @ 20 %"]
    with pytest.raises(ConfigError, match="holds lookm @ 20 % on made_up, which this run lacks"):
        compare(more, run(), margin=0.05)
    with pytest.raises(ConfigError, match="answered other documents than the baseline"):
        compare(baseline, run([0] * 11), margin=0.05)
    other = copy.deepcopy(baseline)
    other["tasks"][synthetic.TASK]["limit"] = 99
    with pytest.raises(ConfigError, match="Task made_up changed since the baseline .limit was 99, is 12"):
        compare(other, run(), margin=0.05)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 0}'])
def test_a_file_that_is_no_baseline_is_refused(tmp_path, content):
    path = tmp_path / "baseline.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="kvcomp-eval baseline CONFIG"):
        read_baseline(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_baseline(tmp_path / "missing.json")


def test_junit_counts_failures_and_says_why(baseline, run):
    suite = ElementTree.fromstring(junit(compare(baseline, run([7] * 12), margin=0.05), "ci"))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "2", "0")
    failure = suite.find("testcase[@name='snapkv @ 20 %: fidelity']/failure")
    assert failure is not None
    assert failure.get("type") == WORSE
    assert "12 of 12 documents changed" in failure.get("message", "")


def test_junit_of_a_run_that_did_not_happen_is_an_error():
    suite = ElementTree.fromstring(junit([], "ci", "the model is <missing>"))
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    error = suite.find("testcase/error")
    assert error is not None
    assert error.get("message") == "the model is <missing>"


def test_the_summary_lists_failures_first_with_their_figures(baseline, run):
    verdicts = compare(baseline, run([7] * 12), margin=0.05)
    assert headline(verdicts, 0.05) == "2 of 4 comparisons failed (2 worse; margin 0.05)."
    table = [line for line in markdown(verdicts, 0.05, "ci").splitlines() if line.startswith("| ")][1:]
    assert [line.split("|")[1].strip() for line in table] == ["**worse**"] * 2 + ["not worse"] * 2
    assert "12 of 12" in table[0]
    assert "80 % power" in power_note(verdicts)
