"""The lmms-eval tasks: they load from their YAMLs and give the documents, prompts and scores."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvcomp_eval.tasks
from kvcomp_eval.demo import heldout, prompts

NAMES = ("kvcomp_demo_vqa", "kvcomp_demo_describe", "kvcomp_demo_across")


@pytest.fixture(scope="module")
def loaded():
    from lmms_eval.tasks import TaskManager, get_task_dict

    manager = TaskManager(include_path=str(Path(kvcomp_eval.tasks.__path__[0])))
    group = get_task_dict(["kvcomp_demo"], manager)
    (members,) = group.values()
    return members


def test_group_has_the_three_tasks(loaded):
    assert set(loaded) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_documents_are_the_held_out_ones(loaded, name):
    docs = loaded[name].test_docs()
    assert len(docs) == 200
    short = name.removeprefix("kvcomp_demo_")
    assert docs[3] == heldout.document(short, 3)
    assert {doc["kind"] for doc in docs} == set(heldout.TASKS[short])


@pytest.mark.parametrize("name", NAMES)
def test_chat_and_simple_prompts_agree(loaded, name):
    task = loaded[name]
    doc = task.test_docs()[0]
    (turn,) = task.doc_to_messages(doc)
    images = [part["url"] for part in turn["content"] if part["type"] == "image"]
    assert [list(image.getdata())[:50] for image in images] == [
        list(image.getdata())[:50] for image in task.doc_to_visual(doc)
    ]
    assert len(images) == doc["images"]
    assert images[0].size == (280, 280)
    assert turn["content"][-1] == {"type": "text", "text": task.doc_to_text(doc)}


@pytest.mark.parametrize("name", NAMES)
def test_reference_answer_scores_one_and_every_metric_is_declared(loaded, name):
    task = loaded[name]
    declared = set(task.aggregation())
    seen = set()
    for doc in task.test_docs().select(range(5)):
        scores = task.process_results(doc, [doc["answer"]])
        assert set(scores.values()) == {1.0}
        seen |= set(scores)
    assert seen == declared


def test_answers_fit_into_max_new_tokens(loaded):
    from kvcomp_eval.demo.build import build_tokenizer

    tokenizer = build_tokenizer()
    for name in NAMES:
        room = loaded[name].config.generation_kwargs["max_new_tokens"]
        longest = max(len(tokenizer(doc["answer"]).input_ids) for doc in loaded[name].test_docs())
        assert longest < room, (name, longest)
    assert set(prompts.KINDS) == {kind for kinds in heldout.TASKS.values() for kind in kinds}
