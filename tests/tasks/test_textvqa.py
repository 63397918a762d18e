"""TextVQA through lmms-eval's task object."""

from __future__ import annotations

import pytest

from tests.tasks import tables


@pytest.fixture
def task(load, tmp_path):
    return load("textvqa_kv", KVCOMP_TEXTVQA_ROOT=tables.write_textvqa(tmp_path))


def test_prompt(task):
    docs = task.test_docs_no_media()
    assert [task.doc_to_text(doc) for doc in docs] == [
        f"<image>{question}\nAnswer the question using a single word or phrase."
        for question in ("What does the page show?", "Is there text?")
    ]
    assert [len(task.doc_to_visual(doc)) for doc in task.test_docs()] == [1, 1]
    assert [task.doc_to_target(doc) for doc in docs] == ["coca-cola", "no"]


@pytest.mark.parametrize(
    ("answer", "score"), [("coca-cola", 1.0), ("Coke", 0.9), ("the coke", 0.9), ("soda", 0.3), ("tea", 0.0), ("", 0.0)]
)
def test_scores_of_given_answers(task, answer, score):
    """Four said coca-cola, three coke, two Coca Cola, one soda; the figures are lmms-eval's."""
    from lmms_eval.tasks.textvqa.utils import textvqa_process_results

    doc = task.test_docs_no_media()[0]
    scores = task.process_results(doc, [answer])
    assert scores == {"exact_match": pytest.approx(score)}
    assert scores["exact_match"] == pytest.approx(textvqa_process_results(dict(doc), [answer])["exact_match"])
