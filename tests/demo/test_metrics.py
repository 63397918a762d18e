"""Golden values of the demo tasks' metrics."""

from __future__ import annotations

import pytest

from kvcomp_eval.demo import metrics

REFERENCE = "first row : column one small red circle , column two large blue ring . second row : empty ."


def test_exact_ignores_case_spacing_and_the_final_stop():
    assert metrics.exact("Small  red circle .", "small red circle") == 1.0
    assert metrics.exact("small red ring", "small red circle") == 0.0


def test_facts_of_a_description():
    assert metrics.stated_facts(REFERENCE, "describe") == {
        ("first", "one", "small red circle"),
        ("first", "two", "large blue ring"),
    }


@pytest.mark.parametrize(
    ("answer", "recall", "f1"),
    [
        (REFERENCE, 1.0, 1.0),
        ("first row : column one small red circle . second row : empty .", 0.5, 2 / 3),
        ("first row : column two small red circle . second row : empty .", 0.0, 0.0),
        ("second row : column one small red circle , column two large blue ring .", 0.0, 0.0),
        (REFERENCE.replace("empty", "column one small green cross"), 1.0, 0.8),
        ("", 0.0, 0.0),
    ],
)
def test_fact_scores_of_a_description(answer, recall, f1):
    assert metrics.fact_scores(answer, REFERENCE, "describe") == pytest.approx((recall, f1))


def test_across_counts_images_and_empty_places():
    reference = "image 1 : small red circle , image 2 : empty , image 3 : large blue ring ."
    answer = "image 1 : small red circle , image 2 : empty , image 3 : large blue cross ."
    assert metrics.fact_scores(answer, reference, "across") == pytest.approx((2 / 3, 2 / 3))
    scores = metrics.score({"kind": "across", "answer": reference}, answer)
    assert scores["accuracy"] == 0.0
    assert scores["object_accuracy"] == pytest.approx(2 / 3)


def test_rouge_l_is_the_f1_of_the_longest_common_subsequence():
    # Common subsequence "small red" of 3 and 3 words.
    assert metrics.rouge_l("small red ring", "small red circle") == pytest.approx(2 / 3)
    assert metrics.rouge_l("small red", "small red circle") == pytest.approx(2 * 1 * (2 / 3) / (1 + 2 / 3))


def test_vqa_scores_carry_their_kind():
    scores = metrics.score({"kind": "colour", "answer": "red is its colour"}, "red is its colour")
    assert scores == {"accuracy": 1.0, "accuracy_colour": 1.0, "rouge_l": 1.0}
