"""The real command line, offline, with the embedded model under compression: every task generates and scores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tasks import judge, milebench_tree, tables

TASKS = ("milebench", "detailcaps_kv", "textcaps_kv", "textvqa_kv", "vatex_kv", "nextqa_kv", "videochatgpt_kv")
LIMIT = 2
#: Last prompt tokens that the method always keeps.
WINDOW = 32


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> dict[str, str]:
    """Data of every benchmark, and the variables that name it."""
    folder = tmp_path_factory.mktemp("benchmarks")
    names = ("detailcaps", "textcaps", "textvqa", "vatex", "nextqa", "videochatgpt")
    made = {name: getattr(tables, f"write_{name}")(folder / name) for name in names}
    made["milebench"] = milebench_tree.write_tree(folder / "milebench")
    return {f"KVCOMP_{name.upper()}_ROOT": str(path) for name, path in made.items()}


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory, roots):
    """Run ``lmms-eval``; returns its exit code, output and folder."""

    def run(tasks, **variables: str) -> tuple[int, str, Path]:
        out = tmp_path_factory.mktemp("run")
        arguments = f"pretrained=demo,budget_ratio=0.2,max_num_frames=4,report_path={out / 'report.jsonl'}"
        command = [sys.executable, "-m", "lmms_eval", "--model", "qwen2_5_vl_hybridkv", "--model_args", arguments]
        command += ["--tasks", ",".join(tasks), "--limit", str(LIMIT), "--gen_kwargs", "max_new_tokens=4"]
        command += ["--log_samples", "--output_path", str(out), "--verbosity", "DEBUG"]  # DEBUG: errors end in exit 1
        own = {"HF_HOME": str(out / "home"), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        # An empty PATH: no Java, so the run shows what is said of metrics that need it.
        environment = {**os.environ, **own, "PATH": str(out), **roots, **variables}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
        return done.returncode, done.stdout + done.stderr, out

    return run


@pytest.fixture(scope="module")
def finished(evaluate):
    with judge.serve(lambda _: "{'score': 3}") as (url, _):
        return evaluate(TASKS, KVCOMP_JUDGE_URL=url, KVCOMP_JUDGE_MODEL="judge-1")


def lines(path: Path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_task_is_answered_under_compression(finished):
    code, output, out = finished
    assert code == 0, output[-4000:]
    answered = lines(out / "report.jsonl")
    assert len({(line["task"], line["doc_id"]) for line in answered}) == len(answered)
    temporal = 1  # question; all others have two
    assert len(answered) == LIMIT * (8 + len(TASKS) - 2 + 2) + temporal
    for line in answered:
        report = line["report"]
        (length,) = report["prompt_tokens"]
        budget = max(0.2, (WINDOW + 1) / length)  # short prompts keep the window and one entry
        assert report["kept_entries"] / report["full_entries"] == pytest.approx(budget, abs=0.005)


def test_every_metric_is_there_or_says_why_not(finished):
    _, _, out = finished
    (path,) = out.rglob("*_results.json")
    results = json.loads(path.read_text())["results"]
    found = {
        (task, metric.partition(",")[0]): value
        for task, values in results.items()
        for metric, value in values.items()
        if metric.endswith(",none") and "_stderr" not in metric
    }
    withheld = {key: value for key, value in found.items() if isinstance(value, str)}
    reasons = {(metric, value) for (_, metric), value in withheld.items() if metric != "CAPTURE"}
    assert {value for _, value in reasons} == {"not computed: java is not on PATH"}
    assert {task for task, _ in withheld} == {"detailcaps_kv", "textcaps_kv", "vatex_kv"}
    for task in ("detailcaps_kv", "textcaps_kv", "vatex_kv"):
        assert 0 <= found[task, "rouge_l"] <= 1
        assert 0 <= found[task, "CIDEr_python_tokens"] <= 10
    assert 0 <= found["textvqa_kv", "exact_match"] <= 1
    assert 0 <= found["nextqa_kv", "WUPS"] <= 100
    judged = {value for (_, metric), value in found.items() if metric.startswith("gpt_eval_score")}
    assert judged == {3.0}
    scores = [value for (task, metric), value in found.items() if metric == "milebench_score" and task != "milebench"]
    assert len(scores) == 8
    assert found["milebench", "milebench_score"] == pytest.approx(sum(scores) / 8)


def test_broken_video_ends_the_run_and_keeps_the_answers_so_far(evaluate, tmp_path):
    root = tables.write_vatex(tmp_path / "vatex")
    (root / "bikes.mp4").write_bytes(b"no video")
    code, output, out = evaluate(["vatex_kv"], KVCOMP_VATEX_ROOT=str(root))
    assert code == 1
    assert "task vatex_kv, doc 1: ValueError: Video" in output
    assert "bikes.mp4' cannot be read" in output
    assert [line["doc_id"] for line in lines(out / "report.jsonl")] == [0]


def test_missing_data_ends_the_run_before_it_starts(evaluate, tmp_path):
    code, output, out = evaluate(["milebench_webqa"], KVCOMP_MILEBENCH_ROOT=str(tmp_path))
    assert code == 1
    assert "MileBench/WebQA not found. Looked for: " in output
    assert not (out / "report.jsonl").exists()
