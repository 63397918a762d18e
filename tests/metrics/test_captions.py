"""Caption metrics: equal to those of pycocoevalcap, and each missing with a reason where something is missing."""

from __future__ import annotations

import shutil

import pytest

from kvcomp_eval.metrics import captions
from kvcomp_eval.metrics.caption_tokens import java_missing, stanford, treebank
from kvcomp_eval.metrics.captions import CaptionScore, caption_scores, missing_requirements
from kvcomp_eval.metrics.result import NotComputed

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="needs java")

PREDICTIONS = ["A dog runs over the grass.", "Two people (with umbrellas) are standing near a red car.", ""]
REFERENCES = [
    ["A brown dog is running over green grass.", "the dog runs on grass"],
    ["two persons stand by a car, holding umbrellas"],
    ["a cat"],
]
#: Of these samples, by pycocoevalcap 1.2 with its own tokeniser on OpenJDK 17.
GOLDEN = {
    "Bleu_1": 0.555556,
    "Bleu_2": 0.186339,
    "Bleu_3": 0.0000013536,
    "Bleu_4": 0.0000000037916,
    "METEOR": 0.253961,
    "ROUGE_L": 0.312289,
    "CIDEr": 0.848622,
}
ON_TOKENS = [name for name in GOLDEN if name != "METEOR"]

TEXTS = [
    "A man (in red) holds 3,000 dollars; he can't stop.",
    "Two arms. What is it? A state-of-the-art camera!",
    'the dog\'s tail -- it wags... "fast", he said.',
    "[x] {y} & 50% off: $3.5",
    "café über-nice\nnaïve\ttab",
    "",
]


@pytest.fixture
def no_java(monkeypatch):
    monkeypatch.setenv("PATH", "")


@needs_java
def test_golden_values_with_java():
    scores = caption_scores(PREDICTIONS, REFERENCES, list(GOLDEN))
    assert {name: score.value for name, score in scores.items()} == pytest.approx(GOLDEN, rel=1e-4)
    assert all(len(score.per_document) == 3 and score.per_document[2] == 0 for score in scores.values())
    for name in ("ROUGE_L", "CIDEr"):
        assert sum(scores[name].per_document) / 3 == pytest.approx(scores[name].value)


@needs_java
def test_java_tokens_are_those_of_pycocoevalcap():
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    expected = PTBTokenizer().tokenize({row: [{"caption": text}] for row, text in enumerate(TEXTS[:-1])})
    assert stanford(TEXTS) == [*(expected[row][0] for row in range(5)), ""]


@needs_java
def test_python_tokens_equal_javas_but_for_abbreviations():
    assert [treebank(text) for text in TEXTS] == stanford(TEXTS)
    assert treebank("Dr. Who came.") != stanford(["Dr. Who came."])[0]


def test_without_java_the_figures_have_another_name(no_java):
    scores = caption_scores(PREDICTIONS, REFERENCES, list(GOLDEN))
    for name in GOLDEN:
        assert isinstance(scores[name], NotComputed)
        assert "java is not on PATH" in scores[name].reason
    others = {name: score.value for name, score in scores.items() if isinstance(score, CaptionScore)}
    # These texts hold nothing on which the tokenisers differ.
    assert others == pytest.approx({f"{name}_python_tokens": GOLDEN[name] for name in ON_TOKENS}, rel=1e-4)


def test_bleu_is_that_of_sacrebleu_on_the_same_tokens(no_java):
    import sacrebleu

    predictions = ["a dog runs over the green grass in the sun", "two people stand near a red car"]
    references = [["a brown dog runs over the green grass"], ["two people are standing near a red car"]]
    ours = caption_scores(predictions, references, ["Bleu_4"])["Bleu_4_python_tokens"]
    theirs = sacrebleu.corpus_bleu(
        predictions, [[texts[0] for texts in references]], tokenize="none", smooth_method="none", force=True
    )
    assert ours.value == pytest.approx(theirs.score / 100, rel=1e-6)
    assert ours.value > 0.1


def test_preflight_names_what_is_missing(no_java):
    missing = missing_requirements(["CIDEr", "METEOR"])
    assert set(missing) == {"CIDEr", "METEOR"}
    assert java_missing() == missing["METEOR"]
    assert str(missing["METEOR"]).startswith("not computed: java is not on PATH; install")


def test_capture_is_optional(monkeypatch):
    monkeypatch.setattr(captions.importlib.util, "find_spec", lambda _: None)
    assert "capture_metric" in caption_scores(["a"], [["a"]], ["CAPTURE"])["CAPTURE"].reason


def test_failure_in_one_metric_leaves_the_others(monkeypatch, no_java):
    from pycocoevalcap.cider.cider import Cider

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Cider, "compute_score", broken)
    scores = caption_scores(PREDICTIONS, REFERENCES, ["CIDEr", "ROUGE_L"])
    assert scores["CIDEr_python_tokens"] == NotComputed("OSError: disk full")
    assert scores["ROUGE_L_python_tokens"].value == pytest.approx(GOLDEN["ROUGE_L"], rel=1e-4)


@needs_java
def test_dead_meteor_is_not_computed(monkeypatch, tmp_path):
    """A Java that dies at once leaves no number; pycocoevalcap alone would wait for ever when it is collected."""
    fake = tmp_path / "java"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(captions, "stanford", lambda texts: [treebank(text) for text in texts])
    scores = caption_scores(PREDICTIONS, REFERENCES, ["METEOR", "ROUGE_L"])
    assert isinstance(scores["METEOR"], NotComputed)
    assert scores["ROUGE_L"].value == pytest.approx(GOLDEN["ROUGE_L"], rel=1e-4)


def test_failing_tokeniser_is_not_computed(monkeypatch, tmp_path):
    fake = tmp_path / "java"
    fake.write_text("#!/bin/sh\necho out of memory >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    score = caption_scores(PREDICTIONS, REFERENCES, ["CIDEr"])["CIDEr"]
    assert score == NotComputed("RuntimeError: Java's tokeniser failed (exit 3): out of memory")


@pytest.mark.parametrize(
    ("predictions", "references", "metrics", "message"),
    [
        (["a"], [], ["CIDEr"], "1 predictions, 0 lists"),
        (["a"], [[]], ["CIDEr"], "a reference for each"),
        (["a"], [["a"]], ["SPICE"], "Unknown caption metric 'SPICE'; choose from Bleu_1"),
    ],
)
def test_unusable_captions_are_refused(predictions, references, metrics, message):
    with pytest.raises(ValueError, match=message):
        caption_scores(predictions, references, metrics)
