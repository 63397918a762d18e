"""Real runs on the demo model: through lmms-eval, journaled, resumed, guarded, equal to lmms-eval's own command."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from kvcomp_eval.cli import main
from kvcomp_eval.compare.config import load_config, shipped_configs
from kvcomp_eval.compare.journal import JournalError, read_lines
from kvcomp_eval.compare.record import read_records
from kvcomp_eval.compare.runner import Runner
from kvcomp_eval.methods.registry import METHODS

TASK = "kvcomp_demo_vqa"
GRID = {
    "name": "grid",
    "model": {"family": "qwen2_5_vl", "args": {"pretrained": "demo"}},
    "methods": ["snapkv", "random"],
    "budgets": [0.2],
    "tasks": [{"task": TASK, "limit": 4, "metric": "accuracy"}],
    "forced": 1,
}
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def grid(folder, **changes):
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(GRID | changes))
    return path


def run(folder, **changes):
    """Run a grid in this process; returns its problems."""
    folder.mkdir(exist_ok=True)
    with Runner.in_folder(load_config(grid(folder, **changes)), folder) as runner:
        return runner.run(quiet=True)


def replace(monkeypatch, method, fault):
    monkeypatch.setitem(METHODS, method, ("tests.compare.faulty", fault))


def findings(folder):
    """Answers, their tokens, forced walks and scores of every cell: what does not depend on the clock."""
    return {
        key: (
            {place: (line["answer"], line["tokens"], line["report"]) for place, line in record.answers.items()},
            record.scores,
            record.forced,
        )
        for key, record in read_records(sorted(folder.glob("journal*.jsonl"))).items()
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("finished")
    assert run(folder) == []
    return folder


def test_every_answer_has_its_figures(finished):
    for record in read_records([finished / "journal.jsonl"]).values():
        assert len(record.answers) == 4
        assert record.scores["invalid"] == []
        ratio = record.cell.row.budget or 1.0
        for line in record.answers.values():
            assert line["report"]["device_bytes"] == pytest.approx(ratio * line["report"]["full_bytes"], rel=0.01)
            assert len(line["timing"]["step_us"]) == len(line["tokens"]) - 1
            assert line["timing"]["prefill_seconds"] > max(line["timing"]["step_us"]) / 1e6
            assert line["timing"]["decode_peak"] is None or line["timing"]["decode_peak"] > 10**8
        assert len(record.asked("repeat")) == 1
        assert len(record.asked("whole")) == (0 if ratio == 1 else 2)


def test_inputs_are_prepared_once_for_all_methods(tmp_path, monkeypatch):
    from kvcomp_eval.model_wrappers.qwen import QwenVL

    calls = []
    prepare = QwenVL.prepare
    monkeypatch.setattr(QwenVL, "prepare", lambda self, chats: calls.append(len(chats)) or prepare(self, chats))
    assert run(tmp_path, tasks=[{"task": TASK, "limit": 2}]) == []
    assert calls == [1, 1]


def test_a_finished_run_answers_nothing_again(finished):
    before = len(list(read_lines(finished / "journal.jsonl")))
    assert run(finished) == []
    added = list(read_lines(finished / "journal.jsonl"))[before:]
    assert [line["kind"] for line in added] == ["run"]


def test_a_changed_setting_is_refused_before_anything_is_answered(finished):
    before = (finished / "journal.jsonl").read_bytes()
    with pytest.raises(JournalError, match=r"snapkv @ 20 %.* under other settings: method.window was 32, is 16"):
        run(finished, methods=[{"method": "snapkv", "label": "snapkv", "parameters": {"window": 16}}])
    assert (finished / "journal.jsonl").read_bytes() == before


def test_a_run_that_is_killed_three_times_ends_like_an_undisturbed_one(finished, tmp_path):
    rng = random.Random(0)
    journal, errors = tmp_path / "journal.jsonl", tmp_path / "errors.txt"
    command = [
        sys.executable,
        "-m",
        "kvcomp_eval",
        "compare",
        str(grid(tmp_path)),
        "--output",
        str(tmp_path),
        "--quiet",
    ]
    seen = 0
    for _ in range(3):
        with errors.open("wb") as file:
            process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=file)
        target = seen + rng.randint(1, 3)
        while answered(journal) < target and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert seen < answered(journal) < 12, errors.read_text()
        seen = answered(journal)
    with journal.open("ab") as file:
        file.write(b'{"kind": "answer", "cell": "snapkv @ 2')  # what a kill inside a write leaves
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert findings(tmp_path) == findings(finished)
    places = [(line["cell"], line["doc_id"]) for line in read_lines(journal) if line["kind"] == "answer"]
    assert len(places) == len(set(places)) == 12, "no answer was generated twice"


def answered(journal):
    """Answers in a journal that is being written."""
    return journal.read_bytes().count(b'"kind": "answer"') if journal.exists() else 0


def test_lmms_eval_itself_gives_the_same_metrics(finished, tmp_path):
    arguments = ["--model", "qwen2_5_vl_snapkv", "--model_args", "pretrained=demo,budget_ratio=0.2", "--limit", "4"]
    command = [sys.executable, "-m", "lmms_eval", *arguments, "--tasks", TASK, "--log_samples", "--output_path"]
    done = subprocess.run([*command, str(tmp_path)], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = json.loads(next(tmp_path.rglob("*_results.json")).read_text())["results"][TASK]
    records = read_records([finished / "journal.jsonl"])
    ours = next(record for key, record in records.items() if key.startswith("snapkv"))
    assert ours.scores["aggregated"]
    for name, value in ours.scores["aggregated"].items():
        assert theirs[name] == value
    samples = [json.loads(line) for line in next(tmp_path.rglob("*_samples_*.jsonl")).read_text().splitlines()]
    assert {sample["doc_id"]: sample["filtered_resps"] for sample in samples} == {
        document: line["answer"] for (_, document), line in ours.answers.items()
    }


def test_two_processes_give_what_one_does(finished, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29517"]
    command = [*launcher, "-m", "kvcomp_eval", "compare", str(grid(tmp_path)), "--output", str(tmp_path), "--quiet"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "journal.rank1.jsonl").exists()
    assert findings(tmp_path) == findings(finished)
    assert (tmp_path / "report.html").exists()


def test_batches_and_single_answers_agree(finished, tmp_path):
    assert run(tmp_path, batch_size=2) == []
    alone, batched = findings(finished), findings(tmp_path)
    for key, (answers, scores, forced) in alone.items():
        assert {place: found[0] for place, found in batched[key][0].items()} == {
            place: found[0] for place, found in answers.items()
        }
        assert batched[key][1]["aggregated"] == scores["aggregated"]
        assert batched[key][2] == forced


def test_a_failing_cell_is_reported_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    replace(monkeypatch, "snapkv", "Crashing")
    code = main(["compare", str(grid(tmp_path)), "--output", str(tmp_path), "--quiet", "--limit", "2"])
    captured = capsys.readouterr()
    assert code == 1
    assert f"snapkv @ 20 % | {TASK} | seed 0: RuntimeError: task {TASK}, doc " in captured.err
    assert "ArithmeticError: no entries today" in captured.err
    records = read_records([tmp_path / "journal.jsonl"])
    assert [key.split(" | ")[0] for key, record in records.items() if record.scores] == ["full", "random @ 20 %"]
    assert "no entries today" in (tmp_path / "report.html").read_text()


def test_a_task_without_data_is_reported_and_the_others_go_on(tmp_path, monkeypatch):
    from kvcomp_eval.tasks.demo.utils import DemoTask

    download = DemoTask.download

    def missing(self, *arguments):
        if self.config.metadata["demo_task"] == "across":
            raise FileNotFoundError("no such pictures")
        return download(self, *arguments)

    monkeypatch.setattr(DemoTask, "download", missing)
    tasks = ["kvcomp_demo_across", {"task": TASK, "limit": 1}]
    problems = run(tmp_path, tasks=tasks, methods=["snapkv"], guards={"identity": 0})
    assert problems == [
        f"{row} | kvcomp_demo_across | seed 0: FileNotFoundError: no such pictures" for row in ("full", "snapkv @ 20 %")
    ]
    assert all(record.scores for record in read_records([tmp_path / "journal.jsonl"]).values())


@pytest.mark.parametrize(
    ("fault", "guard"), [("NothingDropped", "bytes"), ("LossyWhole", "identity"), ("Leaking", "leak")]
)
def test_guards_catch_methods_with_faults(tmp_path, monkeypatch, fault, guard):
    replace(monkeypatch, "snapkv", fault)
    problems = run(tmp_path, methods=["snapkv"], tasks=[{"task": "kvcomp_demo_across", "limit": 2}])
    assert {problem.split("INVALID, ")[1].partition(":")[0] for problem in problems} == {guard}


def test_the_gate_passes_unchanged_code_and_catches_a_dropped_window(tmp_path, monkeypatch, capsys):
    config = str(grid(tmp_path, methods=["snapkv"], tasks=[{"task": "kvcomp_demo_across", "limit": 4}]))
    baseline, junit, summary = (str(tmp_path / name) for name in ("baseline.json", "junit.xml", "summary.md"))
    assert main(["baseline", config, "--output", baseline, "--quiet"]) == 0
    assert main(["check", config, "--baseline", baseline, "--quiet"]) == 0
    replace(monkeypatch, "snapkv", "WindowDropped")
    outputs = ["--junit", junit, "--summary", summary]
    assert main(["check", config, "--baseline", baseline, "--quiet", *outputs]) == 1
    assert "worse" in capsys.readouterr().out
    assert "<failure" in Path(junit).read_text()
    assert "**worse** | snapkv @ 20 % | kvcomp_demo_across | fidelity" in Path(summary).read_text()


def test_what_cannot_be_run_has_exit_code_two(tmp_path, capsys):
    config = str(grid(tmp_path))
    junit = tmp_path / "junit.xml"
    assert main(["check", config, "--baseline", str(tmp_path / "none.json"), "--junit", str(junit)]) == 2
    assert "<error" in junit.read_text()
    assert main(["compare", config, "--output", str(tmp_path / "grid.yaml" / "run"), "--quiet"]) == 2
    assert main(["compare", str(grid(tmp_path, tasks=["kvcomp_demo_vqx"])), "--dry-run"]) == 2
    assert main(["report", str(tmp_path / "nothing")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [error.split(" ")[0] for error in errors] == [
        "Baseline",
        str(tmp_path / "grid.yaml" / "run"),
        "tasks:",
        str(tmp_path / "nothing"),
    ]
    assert "no task 'kvcomp_demo_vqx' (did you mean 'kvcomp_demo_vqa'?)" in errors[2]


def test_a_model_that_cannot_be_loaded_is_one_sentence(tmp_path, capsys):
    model = {"family": "qwen2_5_vl", "args": {"pretrained": "./nowhere"}}
    assert main(["compare", str(grid(tmp_path, model=model)), "--output", str(tmp_path / "run"), "--quiet"]) == 2
    assert "The model cannot be loaded: pretrained='./nowhere' is not a folder" in capsys.readouterr().err


def test_a_full_disk_ends_the_run_and_loses_nothing(tmp_path, monkeypatch):
    """The fifth answer finds no space; the first half of its line is written."""
    fsync, written = os.fsync, []

    def fill(descriptor):
        written.append(os.fstat(descriptor).st_size)
        if answered(tmp_path / "journal.jsonl") == 5:
            os.ftruncate(descriptor, (written[-2] + written[-1]) // 2)
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fill)
    with pytest.raises(JournalError, match="No space left"):
        run(tmp_path)
    monkeypatch.undo()
    kept = [
        (line["cell"], line["doc_id"]) for line in read_lines(tmp_path / "journal.jsonl") if line["kind"] == "answer"
    ]
    assert len(kept) == 4
    assert run(tmp_path) == []
    places = [
        (line["cell"], line["doc_id"]) for line in read_lines(tmp_path / "journal.jsonl") if line["kind"] == "answer"
    ]
    assert places[:4] == kept
    assert len(places) == len(set(places)) == 12


@pytest.mark.parametrize("name", sorted(shipped_configs()))
def test_every_shipped_configuration_passes_a_dry_run_offline(name, capsys):
    assert main(["compare", name, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert f"{name}: " in printed
    for line in ("Memory: ", "Time: ", "full"):
        assert line in printed
    assert "unknown" not in printed


def test_doctor_knows_every_method_and_family(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for name in (*METHODS, "qwen3_vl", "llava_next", "demo", "lmms-eval"):
        assert name in printed
