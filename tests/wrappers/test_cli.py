"""The real command line, offline, on a saved tiny model: one process and two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.families import images

NUM_DOCS = 5
MODEL = "qwen3_vl_hybridkv"

TASK_YAML = """
task: tiny_pictures
dataset_path: json
dataset_kwargs:
  data_files:
    test: documents.jsonl
test_split: test
output_type: generate_until
doc_to_visual: !function utils.doc_to_visual
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  max_new_tokens: 6
process_results: !function utils.process_results
metric_list:
  - metric: length
    aggregation: mean
    higher_is_better: true
"""

UTILS = """
from PIL import Image

def doc_to_visual(doc):
    return [Image.open(doc["image"]).convert("RGB")]

def process_results(doc, results):
    return {"length": len(results[0])}
"""


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory) -> Path:
    """A task outside of the package: five pictures on disk."""
    folder = tmp_path_factory.mktemp("tasks")
    documents = []
    for index, image in enumerate(images(NUM_DOCS)):
        path = folder / f"{index}.png"
        image.save(path)
        documents.append({"image": str(path), "question": "What is it?" * (index + 1), "answer": "noise"})
    (folder / "documents.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (folder / "tiny_pictures.yaml").write_text(TASK_YAML)
    (folder / "utils.py").write_text(UTILS)
    return folder


@pytest.fixture(scope="module")
def evaluate(task_folder, checkpoint, tmp_path_factory):
    """Run ``lmms-eval`` on that task; returns its output and its folder."""
    home = tmp_path_factory.mktemp("home")

    def run(launcher: list[str], extra: str = "", model: str = MODEL) -> tuple[str, Path]:
        out = tmp_path_factory.mktemp("out")
        limits = "min_pixels=3136,max_pixels=50176,device=cpu,dtype=float32"
        arguments = f"pretrained={checkpoint('qwen3_vl')},{limits},report_path={out}/report.jsonl{extra}"
        command = [sys.executable, "-m", *launcher, "lmms_eval", "--model", model, "--model_args", arguments]
        command += ["--tasks", "tiny_pictures", "--include_path", str(task_folder), "--output_path", str(out)]
        command += ["--batch_size", "2", "--log_samples", "--verbosity", "DEBUG"]
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(home), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **offline}, timeout=240)
        return f"{done.returncode}\n{done.stdout}\n{done.stderr}", out

    return run


BUDGET = ",budget_ratio=0.5,window=4"


@pytest.fixture(scope="module")
def single(evaluate) -> tuple[str, Path]:
    return evaluate([], BUDGET)


@pytest.fixture(scope="module")
def double(evaluate) -> tuple[str, Path]:
    return evaluate(["torch.distributed.run", "--nproc_per_node=2", "--master_port=29653", "-m"], BUDGET)


def results(out: Path) -> dict[str, Any]:
    (path,) = out.rglob("*_results.json")
    return json.loads(path.read_text())


def samples(out: Path) -> list[tuple[int, Any]]:
    (path,) = out.rglob("*_samples_tiny_pictures.jsonl")
    lines = map(json.loads, path.read_text().splitlines())
    return sorted((line["doc_id"], line["filtered_resps"]) for line in lines)


def reports(*paths: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return sorted(lines, key=lambda line: line["doc_id"])


def test_one_process_prints_its_table_and_writes_realised_bytes(single):
    output, out = single
    assert output.startswith("0\n"), output[-4000:]
    assert "|tiny_pictures|" in output
    written = results(out)
    assert written["config"]["model_backend"] == f"kvcomp_eval.model_wrappers.{MODEL} (chat)"
    throughput, lines = written["throughput"], reports(out / "report.jsonl")
    assert [line["doc_id"] for line in lines] == list(range(NUM_DOCS))
    for name in ("device_bytes", "host_bytes", "index_bytes", "full_bytes"):
        mean = sum(line["report"][name] / line["batch"] for line in lines) / NUM_DOCS
        assert throughput[f"avg_{name}"] == pytest.approx(mean), name
    ratio = throughput["avg_device_bytes"] / throughput["avg_full_bytes"]
    assert throughput["avg_realised_ratio"] == pytest.approx(ratio)
    assert 0.3 < ratio < 0.8


def test_two_processes_give_the_same_answers(single, double):
    output, out = double
    assert output.startswith("0\n"), output[-4000:]
    assert samples(out) == samples(single[1])
    assert len(samples(out)) == NUM_DOCS
    both = reports(out / "report.jsonl", out / "report.rank1.jsonl")
    assert [line["doc_id"] for line in both] == list(range(NUM_DOCS))
    assert [line["answer"] for line in both] == [line["answer"] for line in reports(single[1] / "report.jsonl")]


def test_refused_argument_reaches_the_terminal(evaluate):
    output, _ = evaluate([], ",budget_ration=0.5")
    assert output.startswith("1\n")
    assert "qwen3_vl_hybridkv has no argument 'budget_ration' (did you mean 'budget_ratio'?)" in output
