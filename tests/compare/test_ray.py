"""Whole cells on Ray's workers: as one process would have run them, with one writer of the journal."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from kvcomp_eval.cli import main
from kvcomp_eval.compare import ray_worker, ray_workers
from kvcomp_eval.compare.config import ConfigError
from kvcomp_eval.compare.evaluator import Outcome, Preparation
from kvcomp_eval.compare.journal import Journal, JournalError, read_lines
from kvcomp_eval.compare.progress import RunProgress
from kvcomp_eval.compare.ray_worker import Worker
from kvcomp_eval.compare.ray_workers import after_full, agreed, shares, write
from kvcomp_eval.compare.record import CellRecord, read_records
from tests.compare import synthetic
from tests.compare.test_run import TASK, findings, grid, run

SMALL = {"tasks": [{"task": TASK, "limit": 3, "metric": "accuracy"}], "guards": {"identity": 1}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of an undisturbed run in one process."""
    folder = tmp_path_factory.mktemp("finished")
    assert run(folder, **SMALL) == []
    return folder


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of its own for every run, whatever runs on this machine."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.delenv("TMPDIR", raising=False)  # Ray's sockets need a short path
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_agent_register_timeout_ms", "120000")  # ten seconds are too few on a busy machine
    yield
    assert not ray.is_initialized()


def compare(folder):
    arguments = ["compare", str(grid(folder, **SMALL)), "--output", str(folder), "--quiet", "--ray", "--workers", "2"]
    return main(arguments)


def places(folder):
    """Cells and documents that were answered."""
    lines = read_lines(folder / "journal.jsonl")
    return [(line["cell"], line["doc_id"]) for line in lines if line["kind"] == "answer"]


@pytest.mark.usefixtures("cluster")
def test_two_workers_give_what_one_process_does(finished, tmp_path, capfd):
    assert compare(tmp_path) == 0
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["journal.jsonl"]
    assert findings(tmp_path) == findings(finished)
    assert (tmp_path / "report.html").exists()
    assert "ray" not in capfd.readouterr().err.lower()
    answered = len(places(tmp_path))
    assert run(tmp_path, **SMALL) == []
    assert len(places(tmp_path)) == answered


class DyingWorker(Worker):
    """Is killed when two answers of SnapKV are in the journal."""

    def start(self, cell, record):
        self.record = record
        return super().start(cell, record)

    def proceed(self, refusal):
        if self.record.key.startswith("snapkv") and len(self.record.answers) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().proceed(refusal)


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_fails_its_cell_and_a_rerun_goes_on(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ray_workers, "Worker", DyingWorker)
    assert compare(tmp_path) == 1
    assert f"snapkv @ 20 % | {TASK} | seed 0: the worker is lost: " in capsys.readouterr().err
    records = read_records([tmp_path / "journal.jsonl"])
    assert {key.split(" ")[0]: (record.scores is None, len(record.answers)) for key, record in records.items()} == {
        "full": (False, 3),
        "snapkv": (True, 2),
        "random": (False, 3),
    }
    assert run(tmp_path, **SMALL) == []
    assert findings(tmp_path) == findings(finished)
    assert len(places(tmp_path)) == len(set(places(tmp_path))) == 9


class Answering:
    """An evaluator without a model: it answers documents until the record refuses."""

    def __init__(self, config):
        self.config = config

    def evaluate(self, cell, record):
        for document in range(2):
            record.add([synthetic.line(document, synthetic.answer(document), 0.2)])
        return Outcome({"documents": len(record.answers)})


@pytest.fixture
def cells():
    return synthetic.config(seeds=[0, 1]).cells({synthetic.TASK: [synthetic.TASK]})


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr(ray_worker, "Evaluator", Answering)
    return Worker(synthetic.config())


def drive(worker, cell, record):
    """What the driver does with one worker: its last message, and the answers that it was sent."""
    with RunProgress({cell.key: (2, 0)}, disable=True) as progress:
        progress.start(cell.key)
        message = worker.start(cell, CellRecord(cell.key))
        while message.outcome is None:
            message = worker.proceed(write(message, record, progress))
    return message.outcome


def test_a_worker_goes_on_when_its_lines_are_written(worker, cells, tmp_path):
    with Journal(tmp_path) as journal:
        record = CellRecord(cells[1].key, journal=journal)
        assert drive(worker, cells[1], record).scores == {"documents": 2}
    again = read_records([tmp_path / "journal.jsonl"])[cells[1].key]
    assert again.answers == record.answers
    assert len(again.answers) == 2


def test_a_full_disk_reaches_the_worker_and_nothing_is_taken_for_written(worker, cells, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    with Journal(tmp_path) as journal:
        record = CellRecord(cells[1].key, journal=journal)
        monkeypatch.setattr(os, "fsync", full)
        outcome = drive(worker, cells[1], record)
        assert outcome.scores is None
        assert outcome.error.startswith("JournalError: ")
        assert "No space left" in outcome.error
        assert record.answers == {}
        with pytest.raises(JournalError, match="No space left"):
            record.fail(outcome.error)


def test_traces_travel_with_the_line_that_names_them(worker, cells, tmp_path, monkeypatch):
    def trace(self, cell, record):
        path = record.new_trace()
        path.parent.mkdir()
        path.write_bytes(b"steps")
        record.add_trace(path)
        return Outcome({})

    monkeypatch.setattr(Answering, "evaluate", trace)
    with Journal(tmp_path) as journal:
        record = CellRecord(cells[1].key, journal=journal)
        drive(worker, cells[1], record)
    (path,) = read_records([tmp_path / "journal.jsonl"])[cells[1].key].traces
    assert path.parent.parent == tmp_path
    assert path.read_bytes() == b"steps"


def test_compressed_cells_wait_for_the_uncompressed_one_of_their_seed(cells):
    ended = [(cell, Outcome({})) for cell in reversed(cells)]
    order = [cell.key for cell, _ in after_full(cells, ended)]
    assert sorted(order) == sorted(cell.key for cell in cells)
    for cell in cells:
        assert order.index(f"full | {cell.task} | seed {cell.seed}") <= order.index(cell.key)
    resumed = cells[1:]  # the first cell, uncompressed, was complete already
    assert next(after_full(resumed, [(resumed[0], Outcome({}))]))[0] == resumed[0]


@pytest.mark.parametrize(
    ("machines", "wanted", "expected"),
    [
        (
            [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 16.0, "GPU": 1.0}, {"CPU": 4.0}],
            None,
            (3, {"num_gpus": 1, "num_cpus": 4}),
        ),
        ([{"CPU": 8.0, "GPU": 2.0}], 1, (1, {"num_gpus": 1, "num_cpus": 4})),
        ([{"CPU": 2.0}], 2, (2, {"num_cpus": 1})),
        ([{"CPU": 2.0}, {"CPU": 6.0}], None, (2, {"num_cpus": 3})),
        ([{"CPU": 3.0}, {"CPU": 3.0}], 3, (3, {"num_cpus": 1})),
    ],
)
def test_workers_share_what_the_machines_have(machines, wanted, expected):
    assert shares(machines, wanted) == expected


def test_more_workers_than_places_are_refused():
    with pytest.raises(ConfigError, match="--workers 3 does not fit: the cluster has 2 processors; use 1 to 2"):
        shares([{"CPU": 2.0}], 3)
    with pytest.raises(ConfigError, match="the cluster has 1 GPUs"):
        shares([{"CPU": 8.0, "GPU": 1.0}], 2)


def test_workers_that_would_answer_otherwise_are_refused_and_lacking_data_is_missing():
    def found(missing=None, version="1", machine="a"):
        settings = {"cell": {"versions": {"torch": version}}}
        return Preparation(missing or {}, settings, {"cell": 3}, {"processor": machine})

    assert agreed([found(), found()]).machine == {"processor": "a", "workers": 2}
    assert agreed([found(), found(machine="b")]).machine["other_machines"] == [{"processor": "b"}]
    assert agreed([found(), found({"task": "no pictures"})]).missing == {"task": "no pictures"}
    with pytest.raises(ConfigError, match="versions.torch was '1', is '2'"):
        agreed([found(), found(version="2")])


def test_without_ray_one_sentence_names_the_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert compare(tmp_path) == 2
    assert capsys.readouterr().err == "--ray needs Ray, which is not installed: pip install 'kvcomp-eval[ray]'.\n"


def test_workers_without_ray_are_refused(tmp_path, capsys):
    assert main(["compare", str(grid(tmp_path)), "--output", str(tmp_path), "--workers", "2"]) == 2
    assert "--workers 2 needs --ray" in capsys.readouterr().err
