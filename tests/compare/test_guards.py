"""Each guard fires on the fault that it is for, and only then."""

from __future__ import annotations

import copy

import pytest

from kvcomp_eval.compare.config import Guards, Row
from kvcomp_eval.compare.guards import departures, violations
from kvcomp_eval.compare.journal import journal_files
from kvcomp_eval.compare.record import ALONE, read_records
from tests.compare import synthetic

ROW = Row("snapkv", "snapkv", {}, 0.2, bytes_tolerance=0.05)


@pytest.fixture
def pair(tmp_path):
    """The records of a compressed and of the uncompressed cell."""
    synthetic.write_run(tmp_path, {"full": [0] * 3, "snapkv @ 20 %": [0, 1, 2]})
    found = read_records(journal_files(tmp_path)).values()
    full, snapkv = sorted(found, key=lambda record: record.cell.row.budget is not None)
    return snapkv, full


def found(pair, guards=None, row=ROW):
    snapkv, full = pair
    return violations(snapkv, row, full, guards or Guards())


def key(document):
    return synthetic.TASK, document


def asked(guard, document):
    return guard, *key(document)


def test_a_good_cell_passes_every_guard(pair):
    assert found(pair) == []
    assert violations(pair[1], Row("full", "full", {}, None), None, Guards()) == []


@pytest.mark.parametrize("factor", [0.9, 1.1, 5.0])
def test_other_bytes_than_planned_violate(pair, factor):
    for line in pair[0].answers.values():
        line["report"]["device_bytes"] *= factor
    assert len(found(pair)) == 1
    assert found(pair)[0].startswith(f"bytes: {factor:.3f} of the planned")
    assert found(pair, row=Row("snapkv", "snapkv", {}, 0.2, bytes_tolerance=None)) == []


def test_a_compression_that_did_not_happen_violates(pair):
    for line in pair[0].answers.values():
        line["report"]["device_bytes"] = line["report"]["full_bytes"]
    assert "bytes: 5.000" in found(pair)[0]


def test_a_method_that_declares_other_bytes_is_valid_and_says_so(pair):
    for line in pair[0].answers.values():
        line["report"]["device_bytes"] *= 1.5
        line["declared_bytes"] *= 1.5
    assert found(pair) == []
    assert departures(pair[0], ROW) == ["by design holds 1.50 of its budget, index not counted"]
    assert departures(pair[1], Row("full", "full", {}, None)) == []
    for line in pair[0].answers.values():
        line["declared_bytes"] *= 2
    assert found(pair)[0].startswith("bytes: 0.500 of the planned")


def test_an_index_is_extra_and_a_pool_on_the_device_is_named(pair):
    for line in pair[0].answers.values():
        line["report"]["index_bytes"] = line["planned_bytes"]
        line["report"]["device_bytes"] += line["planned_bytes"]
    assert found(pair) == []
    assert departures(pair[0], ROW) == []
    for line in pair[0].answers.values():
        line["report"]["pool_bytes"] = 4 * line["planned_bytes"]
        line["report"]["device_bytes"] += 4 * line["planned_bytes"]
    assert found(pair) == []
    assert departures(pair[0], ROW) == ["by design holds 5.00 of its budget, index not counted"]


def test_another_answer_on_repetition_violates(pair):
    pair[0].guard_answers[asked("repeat", 0)]["tokens"] = [1]
    assert [text.partition(":")[0] for text in found(pair)] == ["leak"]
    assert found(pair, Guards(leak=False)) == []


def test_another_answer_at_full_budget_violates(pair):
    pair[0].guard_answers[asked("whole", 1)]["tokens"] = [1]
    assert found(pair) == ["identity: at 100 % document 1 is not answered as with the full cache"]


@pytest.mark.parametrize("change", [{"prompt": "other"}, {"steps": [1, 3]}])
def test_other_positions_violate(pair, change):
    pair[0].guard_answers[asked("repeat", 0)]["positions"] |= change
    assert [text.partition(":")[0] for text in found(pair)] == ["positions"]
    assert found(pair, Guards(positions=False)) == []


def test_answers_of_other_length_are_compared_as_far_as_both_go(pair):
    pair[0].guard_answers[asked("repeat", 0)]["positions"]["steps"] = [1]
    assert found(pair) == []


def test_a_guard_that_did_not_ask_is_a_violation_itself(pair):
    kept = copy.deepcopy(pair[0].guard_answers)
    pair[0].guard_answers.clear()
    assert {text.partition(":")[0] for text in found(pair)} == {"leak", "identity", "positions"}
    pair[0].guard_answers |= kept
    assert found(pair) == []


def test_in_batches_single_answers_are_compared_with_single_ones(pair):
    snapkv, full = pair
    snapkv.answers[key(0)]["tokens"] = [1, 2]  # rounded otherwise in its batch
    assert [text.partition(":")[0] for text in found(pair)] == ["leak"]
    snapkv.guard_answers[asked(ALONE, 0)] = copy.deepcopy(snapkv.guard_answers[asked("repeat", 0)])
    assert found(pair) == []
    full.answers[key(1)]["tokens"] = [3]
    assert [text.partition(":")[0] for text in found(pair)] == ["identity"]
    full.guard_answers[asked(ALONE, 1)] = copy.deepcopy(snapkv.guard_answers[asked("whole", 1)])
    assert found(pair) == []
