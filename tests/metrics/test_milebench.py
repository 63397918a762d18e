"""MileBench's official scorer to the letter, and the sane one beside it."""

from __future__ import annotations

import pytest

from kvcomp_eval.metrics.milebench import (
    image_level,
    letter,
    metric_name,
    official_choice,
    official_score,
    process,
    sane_choice,
    sane_score,
    scoring_rule,
)

CHOICES = ["Spark", "Answer two", "Blue whale", "Dog"]


@pytest.mark.parametrize(
    ("subset", "question_type", "rule", "metric"),
    [
        ("CLEVR-Change", "open-ended", "rouge_l", "rouge_l"),
        ("DocVQA", "multi-choice", "choice", "accuracy"),
        ("MMCoQA", "open-ended", "contains", "accuracy"),
        ("TextNeedleInAHaystack", "open-ended", "contains_word", "accuracy"),
    ],
)
def test_rule_of_a_subset(subset, question_type, rule, metric):
    assert scoring_rule(subset, question_type) == rule
    assert metric_name(rule) == metric


def test_unknown_question_type_is_refused():
    with pytest.raises(ValueError, match="DocVQA: question_type is 'essay'"):
        scoring_rule("DocVQA", "essay")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3,000 dollars", "3000 dollars"),
        ("U.S.A.", "usa"),
        ("3.5", "3.5"),
        ("a-b", "a b"),
        ("$3,000", "$3000"),
        ("a-b and c -d", "ab and c d"),
        ("Two\nlines\tand more ", "two lines and more"),
        ("'\"Quoted\"'", "quoted"),
        ("." * 40, "." * 8),
    ],
)
def test_processing(text, expected):
    assert process(text) == expected


@pytest.mark.parametrize(
    ("reference", "prediction", "expected"),
    [
        (
            "the tiny cylinder changed to brown. the tiny object became brown.",
            "The small cylinder has turned brown.",
            0.428571,
        ),
        (
            "person with umbrella is gone. person with red coat is moved.",
            "The person with the umbrella is gone, and the person in the red coat moved.",
            0.842105,
        ),
        ("there are no changes", "The two images are identical.", 0.222222),
        ("a dog", "", 0.0),
    ],
)
def test_open_ended(reference, prediction, expected):
    assert official_score(prediction, reference, "rouge_l") == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("prediction", ["A", "A.", "A. Spark", "(A) Spark", "I think spark."])
def test_plain_choices_count_for_both_scorers(prediction):
    assert official_score(prediction, "Spark", "choice", CHOICES) == 1
    assert sane_score(prediction, "Spark", "choice", CHOICES) == 1


@pytest.mark.parametrize(
    ("prediction", "read"),
    [
        ("The answer is A.", "AA"),
        ("Answer: B", "AB"),
        ("The answer is (D).", "AD"),
        ("", "C"),
        ("C. spark", "A"),
    ],
)
def test_letters_that_the_official_scorer_reads(prediction, read):
    assert official_choice(process(prediction), [process(choice) for choice in ["spark", "x1", "x2", "x3"]]) == read


@pytest.mark.parametrize(
    ("prediction", "reference", "choices", "official", "sane"),
    [
        ("The answer is A.", "Spark", CHOICES, 0, 1),
        ("", "Blue whale", CHOICES, 1, 0),
        ("C. spark", "Spark", CHOICES, 1, 0),
        ("Nothing is known", "no", ["yes", "no"], 1, 0),
        ("12", "1", ["1", "12"], 1, 0),
        ("12", "12", ["1", "12"], 0, 1),
        # The official scorer never finds the text of a choice with a special character, but a letter of the answer.
        ("it is 3.5", "3.5", ["2", "3.5"], 0, 1),
        ("the answer is a dog", "Dog", CHOICES, 1, 1),
        ("The answer is a spark or a dog", "Spark", CHOICES, 1, 0),
    ],
)
def test_where_the_scorers_differ(prediction, reference, choices, official, sane):
    assert official_score(prediction, reference, "choice", choices) == official
    assert sane_score(prediction, reference, "choice", choices) == sane


def test_containment():
    assert official_score("He is Parisian.", "Paris", "contains") == 1
    assert sane_score("He is Parisian.", "Paris", "contains") == 0
    assert official_score("He is Parisian.", "Paris", "contains_word") == 0
    assert sane_score("In Paris, France.", "Paris", "contains") == 1
    # Two words are never one of the words.
    assert official_score("in New York", "New York", "contains_word") == 0
    assert sane_score("in New York", "New York", "contains_word") == 1


def test_reference_that_is_no_choice_is_refused():
    for score in (official_score, sane_score):
        with pytest.raises(ValueError, match="'?[Cc]at'? is not among the choices"):
            score("A", "Cat", "choice", CHOICES)


@pytest.mark.parametrize(
    ("prediction", "index"),
    [
        ("B", 1),
        ("(b)", 1),
        ("B: because", 1),
        ("The correct option is D because it barks", 3),
        ("Answer: (C)", 2),
        ("blue whale", 2),
        ("a blue whale and a dog", None),
        ("E", None),
        ("no idea", None),
    ],
)
def test_sane_choice(prediction, index):
    assert sane_choice(prediction, CHOICES) == index


def test_letters_and_levels():
    assert [letter(index) for index in (0, 25, 26, 51, 52)] == ["A", "Z", "AA", "AZ", "BA"]
    assert [image_level(number) for number in (2, 5, 6, 31, 32, 109)] == ["Few"] * 2 + ["Medium"] * 2 + ["Many"] * 2
