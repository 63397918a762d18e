"""The ``*_fidelity`` tasks: they load as the tasks that they are made from, and score through the real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvcomp_eval.metrics.pairs import Pair
from tests.tasks import tables

TABLES = {
    "detailcaps_kv": "detailcaps",
    "textcaps_kv": "textcaps",
    "textvqa_kv": "textvqa",
    "vatex_kv": "vatex",
    "nextqa_kv": "nextqa",
    "videochatgpt_generic_kv": "videochatgpt",
    "videochatgpt_temporal_kv": "videochatgpt",
    "videochatgpt_consistency_kv": "videochatgpt",
}
MILEBENCH = ("clevr_change", "spot_the_diff", "docvqa", "slidevqa", "mmcoqa", "multimodalqa", "webqa", "wikivqa")
DEMO = ("kvcomp_demo_vqa", "kvcomp_demo_describe", "kvcomp_demo_across")
FOR_ALL = ("rouge_l", "rouge_l_coco", "exact_match", "agreed_share", "length_ratio")
TASK = "kvcomp_demo_describe_fidelity"


@pytest.fixture
def load_with_data(load, tmp_path, milebench_root):
    """Load a task by name on its fixture."""

    def make(name: str):
        base = name.removesuffix("_fidelity")
        if base in TABLES:
            benchmark = TABLES[base]
            root = tmp_path / benchmark
            made = root if root.exists() else getattr(tables, f"write_{benchmark}")(root)
            return load(name, **{f"KVCOMP_{benchmark.upper()}_ROOT": made})
        return load(name, KVCOMP_MILEBENCH_ROOT=milebench_root)

    return make


@pytest.mark.parametrize("name", [*TABLES, *(f"milebench_{subset}" for subset in MILEBENCH), *DEMO])
def test_every_task_asks_what_its_base_asks_and_compares_answers(load_with_data, name):
    base, task = load_with_data(name), load_with_data(f"{name}_fidelity")
    assert task.config.generation_kwargs == base.config.generation_kwargs
    documents = task.test_docs_no_media() if task.has_test_docs() else []
    assert len(documents) == len(base.test_docs_no_media())
    index = len(documents) - 1
    assert task.doc_to_text(documents[index]) == base.doc_to_text(base.test_docs_no_media()[index])
    with pytest.raises(ValueError, match=rf"Document {index}: task {name}_fidelity .*add reference=auto"):
        task.process_results(documents[index], ["a red ring"])
    task.dataset.pairs[index] = Pair("a red ring", "a blue ring", (5, 6, 7, 1), (5, 8, 7, 1))
    scores = task.process_results(documents[index], ["a red ring"])
    assert scores == {
        "rouge_l": pytest.approx(2 / 3),
        "rouge_l_coco": pytest.approx(2 / 3),
        "exact_match": 0.0,
        "first_divergent_token": 1,
        "agreed_share": 0.25,
        "length_ratio": 1.0,
    }
    assert task.aggregation().keys() == task.higher_is_better().keys() == scores.keys()


@pytest.mark.parametrize(
    ("group", "members"),
    [
        ("milebench_fidelity", {f"milebench_{subset}_fidelity" for subset in MILEBENCH}),
        ("videochatgpt_kv_fidelity", {f"{name}_fidelity" for name in TABLES if name.startswith("videochatgpt")}),
        ("kvcomp_demo_fidelity", {f"{name}_fidelity" for name in DEMO}),
    ],
)
def test_groups(task_manager, group, members):
    assert set(task_manager._get_config(group)["task"]) == members


def test_documents_without_a_value_are_left_out_of_its_mean(load_with_data):
    put_together = load_with_data(TASK).aggregation()
    assert put_together["first_divergent_token"]([None, 2, 4]) == 3
    assert put_together["first_divergent_token"]([None, None]) is None
    assert put_together["length_ratio"]([float("nan"), 0.5]) == 0.5


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory):
    """Run ``lmms-eval`` on two demo documents; returns exit code, output and results of the task."""

    def run(method: str, references: Path, budget: str = ""):
        out = tmp_path_factory.mktemp("run")
        arguments = f"pretrained=demo,reference={references}{budget}"
        command = [sys.executable, "-m", "lmms_eval", "--model", f"qwen2_5_vl_{method}", "--model_args", arguments]
        command += ["--tasks", TASK, "--limit", "2", "--gen_kwargs", "max_new_tokens=48", "--output_path", str(out)]
        command += ["--verbosity", "DEBUG"]
        own = {"HF_HOME": str(out / "home"), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **own}, timeout=600)
        found = {}
        for path in out.rglob("*_results.json"):
            results = json.loads(path.read_text())["results"][TASK]
            found = {name.partition(",")[0]: value for name, value in results.items() if name.endswith(",none")}
        return done.returncode, done.stdout + done.stderr, found

    return run


def test_full_is_faithful_and_a_small_cache_is_not(evaluate, tmp_path):
    code, output, full = evaluate("full", tmp_path)
    assert code == 0, output[-4000:]
    assert "Uncompressed references" in output
    assert {name: full[name] for name in FOR_ALL} == dict.fromkeys(FOR_ALL, 1.0)
    store = (tmp_path / f"{TASK}.jsonl").read_bytes()
    assert store.count(b"\n") == 3  # settings and two answers

    code, output, compressed = evaluate("snapkv", tmp_path, ",budget_ratio=0.1")
    assert code == 0, output[-4000:]
    assert "Uncompressed references" not in output
    assert (tmp_path / f"{TASK}.jsonl").read_bytes() == store
    for name in ("rouge_l", "rouge_l_coco", "exact_match", "agreed_share"):
        assert compressed[name] < 1, name
    assert compressed["first_divergent_token"] < 48

    (tmp_path / f"{TASK}.jsonl").write_bytes(store.replace(b'"do_sample": false', b'"do_sample": true'))
    code, output, _ = evaluate("snapkv", tmp_path, ",budget_ratio=0.1")
    assert code == 1
    assert "holds answers made under other settings (generation: stored" in output
