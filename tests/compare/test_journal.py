"""The record survives kills, torn lines and full disks, and never mixes settings."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvcomp_eval.compare.config import Cell
from kvcomp_eval.compare.journal import Journal, JournalError, journal_files, read_lines
from kvcomp_eval.compare.record import CellRecord, read_records
from tests.compare import synthetic


def write(folder, count):
    with Journal(folder) as journal:
        journal.append([{"kind": "answer", "cell": "c", "task": "t", "doc_id": index} for index in range(count)])
    return folder / "journal.jsonl"


@pytest.mark.parametrize("torn", [b'{"kind": "answer", "ce', b'{"kind"', b"\xff\xfe"])
def test_a_torn_last_line_is_cut_and_writing_goes_on(tmp_path, torn):
    path = write(tmp_path, 3)
    path.write_bytes(path.read_bytes() + torn)
    assert len(list(read_lines(path))) == 3
    with Journal(tmp_path) as journal:
        assert journal.recovered
        journal.append([{"kind": "answer", "cell": "c", "task": "t", "doc_id": 9}])
    assert [line["doc_id"] for line in read_lines(path)] == [0, 1, 2, 9]


def test_a_last_line_with_its_end_but_damaged_is_cut_too(tmp_path):
    path = write(tmp_path, 2)
    path.write_bytes(path.read_bytes() + b'{"half": \n')
    assert len(list(read_lines(path))) == 2
    with Journal(tmp_path) as journal:
        assert journal.recovered
    assert path.read_text().count("\n") == 2


def test_a_whole_file_is_left_as_it_is(tmp_path):
    before = write(tmp_path, 2).read_bytes()
    with Journal(tmp_path) as journal:
        assert not journal.recovered
    assert (tmp_path / "journal.jsonl").read_bytes() == before


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    path = write(tmp_path, 3)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "damaged", lines[2]]) + "\n")
    with pytest.raises(JournalError, match="line 2 is damaged"):
        list(read_lines(path))


def test_two_processes_cannot_write_one_journal(tmp_path):
    # A real second process: in this one, lmms-eval's evaluator makes every file lock re-entrant once it has run.
    program = (
        f"from pathlib import Path; from kvcomp_eval.compare.journal import Journal; Journal(Path({str(tmp_path)!r}))"
    )
    with Journal(tmp_path):
        second = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert second.returncode == 1
    assert "JournalError: Another process is writing to" in second.stderr
    with Journal(tmp_path):
        pass


def test_a_full_disk_is_a_clear_error(tmp_path):
    (tmp_path / "journal.jsonl").symlink_to("/dev/full")
    with Journal(tmp_path) as journal:
        with pytest.raises(JournalError, match=r"No space left.*written before are safe"):
            journal.append([{"kind": "answer"}])
        with pytest.raises(JournalError, match="No space left"):
            journal.append([])  # what follows a torn line would make it damage in the middle


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot be written.*--output"):
        Journal(tmp_path / "file" / "run")


def test_journals_of_several_processes_are_read_together_the_first_ones_first(tmp_path):
    for process in ("rank1", ""):
        with Journal(tmp_path, process) as journal:
            journal.append([{"kind": "answer", "cell": "c", "task": "t", "doc_id": len(process)}])
    files = journal_files(tmp_path)
    assert [file.name for file in files] == ["journal.jsonl", "journal.rank1.jsonl"]
    assert sorted(read_records(files)["c"].answers) == [("t", 0), ("t", 5)]


def record(journal, cell):
    return read_records(journal_files(journal.folder)).get(cell.key) or CellRecord(cell.key)


def start(folder, cell, **settings):
    with Journal(folder) as journal:
        found = record(journal, cell)
        found.journal = journal
        found.start(cell, json.dumps(settings), settings)
        return found


@pytest.fixture
def cell():
    return synthetic.config().cells({synthetic.TASK: [synthetic.TASK]})[1]


def test_changed_settings_are_refused_and_named(tmp_path, cell):
    start(tmp_path, cell, limit=4, method={"window": 32})
    with pytest.raises(JournalError, match=r"method.window was 32, is 16; seed was None, is 1"):
        start(tmp_path, cell, limit=4, method={"window": 16}, seed=1)


def test_equal_settings_go_on_without_a_second_announcement(tmp_path, cell):
    start(tmp_path, cell, limit=4)
    start(tmp_path, cell, limit=4)
    assert len(list(read_lines(tmp_path / "journal.jsonl"))) == 1


def test_another_main_metric_is_no_other_setting_and_is_remembered(tmp_path, cell):
    start(tmp_path, cell, limit=4)
    start(tmp_path, Cell(cell.row, cell.task, cell.limit, cell.seed, "anls"), limit=4)
    assert read_records(journal_files(tmp_path))[cell.key].cell.metric == "anls"


def test_a_record_read_back_equals_what_was_written(tmp_path):
    synthetic.write_run(tmp_path, {"full": [0] * 4, "snapkv @ 20 %": [0, 1, 2, 3]})
    found = read_records(journal_files(tmp_path))
    snapkv = next(record for key, record in found.items() if key.startswith("snapkv"))
    assert snapkv.cell.row.budget == 0.2
    assert snapkv.answers["made_up", 3] == synthetic.line(3, synthetic.answer(3, 3), 0.2)
    assert snapkv.scores["aggregated"] == {"hit,none": 0.25}
    assert set(snapkv.asked("whole")) == {("made_up", 0), ("made_up", 1)}
