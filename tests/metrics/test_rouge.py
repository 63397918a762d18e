"""The ROUGE-L variants on pairs that tell them apart."""

from __future__ import annotations

import pytest

from kvcomp_eval.metrics.milebench import process
from kvcomp_eval.metrics.rouge import rouge_l, rouge_l_coco, rouge_l_milebench

#: Answer, reference, then: package rouge on raw and on processed texts, rouge-score, COCO.
GOLDEN = {
    "case and punctuation": (
        "A Man is Standing near the Car.",
        "a man is standing near the car.",
        (0.4286, 1.0, 1.0, 1.0),
    ),
    "hyphen and decimal": (
        "a red-brown dog that weighs 42.5 kg sleeps here.",
        "a red brown dog weighs 42.5 kg sleeps here",
        (0.8, 0.9524, 0.9524, 0.7778),
    ),
    "repeated words": (
        "dog the dog saw the cat dog",
        "the and cat the dog the and cat",
        (0.75, 0.75, 0.5333, 0.5270),
    ),
    "sentences swapped": (
        "it rains. the dog saw the dog saw.",
        "the dog saw the dog saw. it rains.",
        (1.0, 0.6, 0.75, 0.75),
    ),
}


@pytest.mark.parametrize(("answer", "reference", "expected"), GOLDEN.values(), ids=GOLDEN)
def test_golden_values(answer, reference, expected):
    got = (
        rouge_l_milebench(answer, reference),
        rouge_l_milebench(process(answer), process(reference)),
        rouge_l(answer, reference),
        rouge_l_coco(answer, reference),
    )
    assert got == pytest.approx(expected, abs=5e-5)


def test_half_an_answer_has_full_precision_and_each_variant_weighs_it_differently():
    """99 words cut after 48; of 35 different words 20 are in the first part."""
    first = [f"w{index % 20}" for index in range(48)]
    second = [f"v{index % 15}" for index in range(51)]
    answer, reference = " ".join(first), " ".join(first + second)
    got = (rouge_l_milebench(answer, reference), rouge_l(answer, reference), rouge_l_coco(answer, reference))
    assert got == pytest.approx((0.7273, 0.6531, 0.6146), abs=5e-5)


def test_coco_takes_precision_and_recall_from_different_references():
    both = rouge_l_coco("a red dog", ["a red dog that sleeps", "a dog"])
    precision, recall = 1.0, 1.0
    assert both == pytest.approx(2.44 * precision * recall / (recall + 1.44 * precision))
    assert both > max(rouge_l_coco("a red dog", [each]) for each in ("a red dog that sleeps", "a dog"))


@pytest.mark.parametrize("answer", ["", " ", "."])
def test_answer_without_a_word_scores_zero(answer):
    assert rouge_l(answer, "a dog") == rouge_l_coco(answer, "a dog") == rouge_l_milebench(answer, "a dog") == 0
