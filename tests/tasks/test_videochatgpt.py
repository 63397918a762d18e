"""Video-ChatGPT through lmms-eval's task objects, judged by a server on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcomp_eval.data.sources import DataDamaged
from kvcomp_eval.tasks.videochatgpt.consistency import pairs
from tests.tasks import judge, tables

GENERIC = ("correctness", "detailed_orientation", "context")


@pytest.fixture
def root(tmp_path):
    return tables.write_videochatgpt(tmp_path / "videochatgpt")


@pytest.fixture(autouse=True)
def no_judge(monkeypatch):
    for variable in ("KVCOMP_JUDGE_URL", "KVCOMP_JUDGE_MODEL", "KVCOMP_JUDGE_KEY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def judged(load, root, monkeypatch):
    """Load a task with a judge at the URL."""

    def make(name, url):
        monkeypatch.setenv("KVCOMP_JUDGE_MODEL", "judge-1")
        return load(name, KVCOMP_VIDEOCHATGPT_ROOT=root, KVCOMP_JUDGE_URL=url)

    return make


def score(value):
    return f"{{'score': {value}}}"


def results(task, answers):
    docs = task.test_docs_no_media()
    scored = [task.process_results(doc, [answer]) for doc, answer in zip(docs, answers, strict=False)]
    return {name: aggregate([scores[name] for scores in scored]) for name, aggregate in task.aggregation().items()}


def test_video_then_bare_question(load, root):
    task = load("videochatgpt_generic_kv", KVCOMP_VIDEOCHATGPT_ROOT=root)
    (turn,) = task.doc_to_messages(task.test_docs()[1])
    video, question = turn["content"]
    assert Path(video["url"]).name == "v_bikes.mp4"
    assert question["text"] == "What do people ride?"


def test_three_dimensions_of_one_answer(judged):
    def reply(question):
        return score(4 if "factual accuracy" in question else 2 if "detail orientation" in question else 5)

    with judge.serve(reply) as (url, asked):
        found = results(judged("videochatgpt_generic_kv", url), ["A rabbit.", "Horses."])
    assert found == {
        **dict(zip((f"gpt_eval_score_{name}" for name in GENERIC), (4, 2, 5), strict=True)),
        "judge_failures": 0,
    }
    assert len(asked) == 6
    assert {body["model"] for body in asked} == {"judge-1"}
    assert sum("Predicted Answer: Horses." in body["messages"][-1]["content"] for body in asked) == 3


def test_scores_of_documents_are_in_the_log(judged):
    with judge.serve(lambda _: "```python\n{'score': 3.5}\n```") as (url, _):
        task = judged("videochatgpt_temporal_kv", url)
        scores = task.process_results(task.test_docs_no_media()[0], ["It wakes."])
    assert scores["gpt_eval_score_temporal"]["score"] == 3.5
    assert scores["judge_failures"] == 0
    assert task.config.metadata["judge_model"] == "judge-1"


def test_a_judge_that_fails_is_not_a_judge_that_gives_zero(judged):
    with judge.serve(lambda question: 400 if "Horses" in question else "{'score': 4}") as (url, _):
        task = judged("videochatgpt_generic_kv", url)
        found = results(task, ["A rabbit.", "Horses."])
    assert found["judge_failures"] == 3
    assert found["gpt_eval_score_context"].startswith("not computed: the judge failed on 1 of 2 answers")


def test_consistency_judges_pairs_of_answers(judged):
    with judge.serve(lambda question: score(5 if "street" in question else 3)) as (url, asked):
        task = judged("videochatgpt_consistency_kv", url)
        assert [doc["question"] for doc in task.test_docs()][:2] == [
            "Where are the bikes?",
            "On what do the bikes ride?",
        ]
        found = results(task, ["On a road.", "On the street.", "A rabbit.", "A hare."])
    assert found == {"gpt_eval_score_consistency": 4.0, "judge_failures": 0}
    assert len(asked) == 2
    (words,) = (text for body in asked if "street" in (text := body["messages"][-1]["content"]))
    for part in ("Where are the bikes?", "On what do the bikes ride?", "On a road.", "On the street."):
        assert part in words


def test_half_a_pair_is_not_judged(judged):
    with judge.serve(lambda _: "{'score': 1}") as (url, asked):
        found = results(judged("videochatgpt_consistency_kv", url), ["On a road.", "On the street.", "A rabbit."])
    assert found["gpt_eval_score_consistency"] == 1.0
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["generic", "temporal", "consistency"])
def test_without_a_judge_the_reason_is_told(load, root, name):
    task = load(f"videochatgpt_{name}_kv", KVCOMP_VIDEOCHATGPT_ROOT=root)
    found = results(task, ["A rabbit."])
    assert found.keys() == set(task.unavailable())
    assert all(value == "not computed: KVCOMP_JUDGE_URL and KVCOMP_JUDGE_MODEL not set" for value in found.values())


def test_five_dimensions(task_manager, load, root, monkeypatch):
    monkeypatch.setenv("KVCOMP_VIDEOCHATGPT_ROOT", str(root))
    ((_, members),) = task_manager.load_task_or_group("videochatgpt_kv", "chat").items()
    metrics = {metric for task in members.values() for metric in task.aggregation()} - {"judge_failures"}
    assert metrics == {f"gpt_eval_score_{name}" for name in (*GENERIC, "temporal", "consistency")}


def test_pairs_of_the_hub_copy_are_one_row_per_wording():
    rows = [
        {"video_name": "a", "question_1": "x1", "question_2": "None", "answer": "x"},
        {"video_name": "b", "question_1": "y1", "question_2": "None", "answer": "y"},
        {"video_name": "a", "question_1": "None", "question_2": "x2", "answer": "x"},
        {"video_name": "b", "question_1": "None", "question_2": "y2", "answer": "y"},
    ]
    assert pairs(rows) == [
        {"video_name": "a", "answer": "x", "questions": ("x1", "x2")},
        {"video_name": "b", "answer": "y", "questions": ("y1", "y2")},
    ]
    with pytest.raises(DataDamaged, match="'y1' has no second wording"):
        pairs(rows[:3])
    with pytest.raises(DataDamaged, match="'x2' has no first wording"):
        pairs(rows[2:])


def test_question_file_without_answers(load, root):
    (root / "temporal_qa.json").write_text(json.dumps([{"Q": "What?", "video_name": "v_bikes"}]))
    with pytest.raises(DataDamaged, match="temporal questions have no column answer"):
        load("videochatgpt_temporal_kv", KVCOMP_VIDEOCHATGPT_ROOT=root)
