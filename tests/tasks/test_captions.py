"""DetailCaps, TextCaps and VATEX through lmms-eval's task objects."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.tasks import tables
from tests.tasks.media import photograph

TASKS = {
    "detailcaps_kv": ("KVCOMP_DETAILCAPS_ROOT", tables.write_detailcaps),
    "textcaps_kv": ("KVCOMP_TEXTCAPS_ROOT", tables.write_textcaps),
    "vatex_kv": ("KVCOMP_VATEX_ROOT", tables.write_vatex),
}
COCO = {"Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr"}
TOKENS = COCO - {"METEOR"}


@pytest.fixture
def caption_task(load, tmp_path):
    def make(name):
        variable, write = TASKS[name]
        return load(name, **{variable: write(tmp_path / name)})

    return make


@pytest.fixture
def without_java(monkeypatch):
    monkeypatch.setenv("PATH", "")


def results(task, answers):
    """Every metric of the task for these answers to its documents, in order."""
    scored = [
        task.process_results(doc, [answer]) for doc, answer in zip(task.test_docs_no_media(), answers, strict=False)
    ]
    return {name: aggregate([scores[name] for scores in scored]) for name, aggregate in task.aggregation().items()}


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("detailcaps_kv", "<image>Describe this image in detail."),
        ("textcaps_kv", "<image>Provide a one-sentence caption for the provided image."),
    ],
)
def test_prompt_of_an_image(caption_task, name, prompt):
    task = caption_task(name)
    doc, bare = task.test_docs()[0], task.test_docs_no_media()[0]
    assert task.doc_to_text(bare) == task.doc_to_text(doc) == prompt
    (turn,) = task.doc_to_messages(doc)
    assert [part["type"] for part in turn["content"]] == ["image", "text"]
    assert turn["content"][0]["url"].mode == "RGB"


def test_detailcaps_shows_the_right_image(caption_task):
    task = caption_task("detailcaps_kv")
    shown = [task.doc_to_visual(doc)[0].tobytes() for doc in task.test_docs()]
    assert shown == [photograph(name).tobytes() for name in ("astronaut", "coffee", "chelsea")]


def test_prompt_of_vatex_is_the_stock_one(caption_task):
    from lmms_eval.tasks.vatex.utils import vatex_test_doc_to_text

    task = caption_task("vatex_kv")
    doc = task.test_docs()[1]
    (turn,) = task.doc_to_messages(doc)
    video, question = turn["content"]
    assert Path(video["url"]).name == "bikes.mp4"
    instruction = question["text"].partition("\n")[0]
    assert question["text"] == vatex_test_doc_to_text(doc, {"prompt": instruction})
    assert "last video" in instruction


@pytest.mark.parametrize("name", TASKS)
def test_metrics_without_java_name_their_tokens_and_say_what_is_missing(caption_task, without_java, name):
    task = caption_task(name)
    answers = [task.doc_to_target(doc).splitlines()[0] for doc in task.test_docs_no_media()]
    found = results(task, answers)
    for metric in COCO:
        assert found[metric] == "not computed: java is not on PATH"
    assert found["rouge_l"] == found["ROUGE_L_python_tokens"] == pytest.approx(1.0)
    assert found["Bleu_4_python_tokens"] == pytest.approx(1.0)
    assert found["CIDEr_python_tokens"] > 3
    assert found.keys() - {"CAPTURE"} == COCO | {f"{metric}_python_tokens" for metric in TOKENS} | {"rouge_l"}


def test_capture_is_reported_as_not_computed(caption_task, without_java):
    task = caption_task("detailcaps_kv")
    assert results(task, ["a", "b", "c"])["CAPTURE"].startswith("not computed: ")
    assert "CAPTURE" in task.unavailable()


def test_missing_java_is_announced_at_load(caption_task, without_java):
    from loguru import logger

    heard: list[str] = []
    handler = logger.add(heard.append, format="{message}")
    caption_task("textcaps_kv")
    logger.remove(handler)
    assert any("METEOR, ROUGE_L, CIDEr will not be computed: java is not on PATH" in line for line in heard)


def test_scores_of_given_captions(caption_task, without_java):
    task = caption_task("textcaps_kv")
    found = results(task, ["A page with printed text.", "A dog."])
    # 5 words, all in the reference of 8, in order: F = 10/13. Then "a" of 2 words and of a reference of 6: F = 2/8.
    assert found["rouge_l"] == pytest.approx((10 / 13 + 2 / 8) / 2)
    # 6 of 7 words occur in a reference; the references nearest in length have 6 + 6 words: brevity penalty exp(1-12/7).
    assert found["Bleu_1_python_tokens"] == pytest.approx(6 / 7 * math.exp(1 - 12 / 7))
    worse = results(task, ["A dog.", "A dog."])
    assert all(worse[metric] < found[metric] for metric in ("rouge_l", "ROUGE_L_python_tokens", "CIDEr_python_tokens"))


def test_empty_answers_score_zero(caption_task, without_java):
    found = results(caption_task("vatex_kv"), ["", ""])
    assert found["rouge_l"] == found["CIDEr_python_tokens"] == 0.0


def test_first_documents_only(task_manager, load, tmp_path):
    root = tables.write_detailcaps(tmp_path)
    assert len(load("detailcaps_500_kv", KVCOMP_DETAILCAPS_ROOT=root).test_docs()) == 3
    config = task_manager._get_config("detailcaps_500_kv")
    assert config["dataset_kwargs"] == {"first": 500}
    config["dataset_kwargs"] = {"first": 2}
    assert [doc["image"] for doc in config["class"](config=config).test_docs()] == ["astronaut.png", "coffee.png"]


def test_predict_only_needs_no_scorer(caption_task, without_java):
    task = caption_task("textcaps_kv")
    task.override_metric("bypass")
    assert task.process_results(task.test_docs_no_media()[0], ["A page."]).keys() == {"bypass"}
