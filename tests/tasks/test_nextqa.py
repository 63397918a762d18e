"""NExT-QA (open-ended) through lmms-eval's task object."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcomp_eval.data.sources import DataNotFound
from tests.tasks import tables


@pytest.fixture
def root(tmp_path):
    return tables.write_nextqa(tmp_path / "nextqa")


@pytest.fixture
def task(load, root):
    return load("nextqa_kv", KVCOMP_NEXTQA_ROOT=root)


def test_video_then_question(task):
    doc = task.test_docs()[0]
    (turn,) = task.doc_to_messages(doc)
    video, question = turn["content"]
    assert (video["type"], Path(video["url"]).name) == ("video", "2400171624.mp4")
    assert question["text"] == "what is the rabbit doing\nAnswer a question using a short phrase or sentence."
    assert task.doc_to_target(doc) == "stand on the grass"


@pytest.mark.parametrize(
    ("row", "answer", "score"),
    [
        (0, "It stands on the grass.", 100.0),  # stop words and inflection do not count
        (0, "standing", 100.0),  # the second reference
        (1, "one", 100.0),
        (1, "two", 0.0),  # counting is right or wrong
        (2, "", 0.0),
    ],
)
def test_scores_of_given_answers(task, row, answer, score):
    scores = task.process_results(task.test_docs_no_media()[row], [answer])
    assert scores.keys() == task.aggregation().keys()
    assert scores["WUPS"] == scores["WUPS_legacy"] == scores["WUPS_0.9"] == pytest.approx(score)


def test_partial_answer_is_the_scorers_value(task):
    from kvcomp_eval.metrics.wups import Wups

    scores = task.process_results(task.test_docs_no_media()[2], ["ride to the house"])
    pair = ("ride to the house", "go home", "CW", "to ride home")
    assert scores["WUPS"] == pytest.approx(100 * Wups("modern").score(*pair))
    assert scores["WUPS_legacy"] == pytest.approx(100 * Wups("legacy").score(*pair))
    assert scores["WUPS_0.9"] == pytest.approx(100 * Wups("modern").score(*pair, threshold=0.9))
    assert 0 < scores["WUPS_0.9"] < scores["WUPS"] < 100


def test_groups_are_means_of_their_own_questions(task):
    docs = task.test_docs_no_media()
    answers = ("standing", "two", "go home")
    scores = [task.process_results(doc, [answer]) for doc, answer in zip(docs, answers, strict=True)]
    found = {name: aggregate([score[name] for score in scores]) for name, aggregate in task.aggregation().items()}
    assert found["WUPS"] == pytest.approx(200 / 3)
    assert (found["WUPS_D"], found["WUPS_C"], found["WUPS_T"]) == (50.0, 100.0, None)


def test_without_wordnet_nothing_is_scored_and_the_reason_is_told(load, root, monkeypatch, tmp_path):
    monkeypatch.setenv("KVCOMP_WORDNET_ROOT", str(tmp_path))
    task = load("nextqa_kv", KVCOMP_NEXTQA_ROOT=root)
    scores = task.process_results(task.test_docs_no_media()[0], ["standing"])
    found = {name: aggregate([scores[name]]) for name, aggregate in task.aggregation().items()}
    assert found.keys() == {"WUPS", "WUPS_legacy", "WUPS_0.9", "WUPS_C", "WUPS_T", "WUPS_D"}
    assert all(value == "not computed: WordNet not found" for value in found.values())
    assert task.unavailable().keys() == found.keys()


def test_missing_video_is_refused_before_the_run(load, root):
    (root / "NExTVideo" / "5333075105.mp4").unlink()
    task = load("nextqa_kv", KVCOMP_NEXTQA_ROOT=root)
    assert task.doc_to_text(task.test_docs_no_media()[0]).startswith("<video>")
    with pytest.raises(DataNotFound, match=r"NExT-QA video 5333075105 not found.*KVCOMP_NEXTQA_ROOT"):
        task.doc_to_text(task.test_docs_no_media()[2])


def test_no_video_at_all(load, root):
    for video in (root / "NExTVideo").iterdir():
        video.unlink()
    with pytest.raises(DataNotFound, match=r"NExT-QA videos \(such as 2400171624\) not found"):
        load("nextqa_kv", KVCOMP_NEXTQA_ROOT=root)


def test_validation_split_has_its_own_file(load, root):
    with pytest.raises(DataNotFound, match=r"val\*.csv"):
        load("nextqa_val_kv", KVCOMP_NEXTQA_ROOT=root)
    (root / "test.csv").rename(root / "val.csv")
    assert len(load("nextqa_val_kv", KVCOMP_NEXTQA_ROOT=root).test_docs()) == 3
