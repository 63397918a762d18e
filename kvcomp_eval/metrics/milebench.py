"""MileBench's scorer (Song et al. 2024, https://arxiv.org/abs/2404.18532), quirks included, and a sane one beside it.

:func:`official_score` gives what the benchmark's ``evaluate.py`` gives, so that figures compare with published ones.
:func:`sane_score` answers the question that was meant: is the answer right?
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from kvcomp_eval.metrics.rouge import rouge_l, rouge_l_milebench

Rule = Literal["rouge_l", "choice", "contains", "contains_word"]

_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_THOUSANDS = re.compile(r"\d,\d")
_FULL_STOP = re.compile(r"\.(?!\d)")
#: The official code passes a flag of this value where ``sub`` takes a count.
_MOST_FULL_STOPS = 32
#: Letters that state a choice: at the head of an answer, or after "answer" and its like. What follows tells the
#: letter from the article ("the answer is a dog").
_LEADING = re.compile(r"^\W*([a-z])(?=\W*$|[.):,]|\s*\n)", re.IGNORECASE)
_STATED = re.compile(
    r"\b(?:answer|choice|option)\b\W*(?:is\b|would be\b)?\W*\b([a-z])(?=\W*$|[.):,;]|\s+(?:because|since)\b)",
    re.IGNORECASE,
)


def scoring_rule(subset: str, question_type: str) -> Rule:
    """How a subset is scored.

    Parameters
    ----------
    subset : str
        For example "CLEVR-Change".
    question_type : str
        ``meta_data.question_type`` of its JSON: "open-ended" or "multi-choice".
    """
    if "NeedleInAHaystack" in subset:
        return "contains_word"
    if "MMCoQA" in subset:
        return "contains"
    rules: dict[str, Rule] = {"open-ended": "rouge_l", "multi-choice": "choice"}
    if question_type not in rules:
        raise ValueError(f"{subset}: question_type is {question_type!r}, but must be one of {', '.join(rules)}.")
    return rules[question_type]


def metric_name(rule: Rule) -> str:
    """Name under which a rule's score is reported: "rouge_l" or "accuracy"."""
    return "rouge_l" if rule == "rouge_l" else "accuracy"


def image_level(num_images: int) -> str:
    """Bucket by number of images: Few (2-5), Medium (6-31) or Many (32-109)."""
    return "Few" if num_images < 6 else "Medium" if num_images < 32 else "Many"


def process(text: str) -> str:
    """Normalise a text as the official scorer does.

    A punctuation mark is deleted where the text has it next to a space anywhere, or has a number such as 3,000
    anywhere; else it becomes a space. Only the first 32 full stops that no digit follows are deleted.
    """
    text = text.replace("\n", " ").replace("\t", " ").strip()
    has_thousands = _THOUSANDS.search(text) is not None
    output = text
    for mark in _PUNCTUATION:
        touches_space = f"{mark} " in text or f" {mark}" in text
        output = output.replace(mark, "" if touches_space or has_thousands else " ")
    output = _FULL_STOP.sub("", output, count=_MOST_FULL_STOPS)
    return output.strip("'").strip('"').strip().lower()


def letter(index: int) -> str:
    """Letters of the choice at an index: A to Z, AA to AZ, BA to BZ."""
    prefix = "" if index < 26 else "A" if index < 52 else "B"
    return prefix + chr(ord("A") + index - 26 * len(prefix) - (26 if prefix == "B" else 0))


def official_score(prediction: str, reference: str, rule: Rule, choices: Sequence[str] | None = None) -> float:
    """Score of the official scorer, 0 to 1.

    Parameters
    ----------
    prediction, reference : str
        Raw texts; a reference that is a number in the JSON is given as ``str(number)``.
    rule : str
        See :func:`scoring_rule`.
    choices : sequence of str, optional
        ``choice_list``; needed by the rule "choice".
    """
    return _OFFICIAL[rule](process(prediction), process(reference), [process(choice) for choice in choices or ()])


def sane_score(prediction: str, reference: str, rule: Rule, choices: Sequence[str] | None = None) -> float:
    """Score without the official quirks, 0 to 1; arguments as in :func:`official_score`.

    ROUGE-L is that of package ``rouge-score``; a contained answer must be whole words; a choice is the letter or
    the text that the answer states (see :func:`sane_choice`), and an answer that states none is wrong.
    """
    return _SANE[rule](prediction, reference, list(choices or ()))


def official_choice(prediction: str, choices: Sequence[str]) -> str:
    """Letter that the official scorer reads off an answer; not always one letter, nor one of the choices.

    Parameters
    ----------
    prediction : str
        Processed.
    choices : sequence of str
        Processed.
    """
    if prediction == "":
        return "C"
    letters = [letter(index) for index in range(len(choices))]
    lettered = [process(f"{key} {choice}") for key, choice in zip(letters, choices, strict=True)]
    found = re.search("|".join(map(re.escape, lettered)), prediction)
    if found:
        return found[0][0].upper()
    texts = [process(choice).replace(" ", "") for choice in choices]
    found = re.search("|".join(map(re.escape, texts)), prediction.replace(" ", ""))
    for key, text in zip(letters, texts, strict=True):
        # The official code compares with the text after escaping it, so a choice with a special character never fits.
        if found and found[0].strip() == text and not re.search(r"[.^$*|]", text):
            return key
    if len(prediction) in (1, 2) and prediction.upper() in letters:
        return prediction.upper()
    return "".join(character.upper() for character in prediction if character.upper() in letters)


def sane_choice(prediction: str, choices: Sequence[str]) -> int | None:
    """Index of the choice that an answer states, None if it states none or several.

    In this order: a letter at its head ("B", "(B) cat", "B. cat"), "answer is B", the one choice whose words it
    contains (of nested ones, such as "1" and "12 1", the longest).
    """
    for pattern in (_LEADING, _STATED):
        stated = pattern.findall(prediction.strip())
        index = ord(stated[-1].upper()) - ord("A") if stated else len(choices)
        if index < len(choices):
            return index
    words = _words(prediction)
    hits = [index for index, choice in enumerate(choices) if _contains(words, _words(choice))]
    longest = [i for i in hits if not any(i != j and _nested(choices[i], choices[j]) for j in hits)]
    return longest[0] if len(longest) == 1 else None


def _official_choice_score(prediction: str, reference: str, choices: Sequence[str]) -> float:
    if reference not in choices:
        raise ValueError(f"The reference {reference!r} is not among the choices {', '.join(map(repr, choices))}.")
    return float(official_choice(prediction, choices) == letter(choices.index(reference)))


def _sane_choice_score(prediction: str, reference: str, choices: Sequence[str]) -> float:
    if process(reference) not in (processed := [process(choice) for choice in choices]):
        raise ValueError(f"The reference {reference!r} is not among the choices {', '.join(map(repr, choices))}.")
    index = sane_choice(prediction, choices)
    return float(index is not None and processed[index] == process(reference))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+(?:[.,]\d+)*", text.lower())


def _contains(words: Sequence[str], part: Sequence[str]) -> bool:
    """True if ``part`` (not empty) occurs in ``words`` as a run of whole words."""
    size = len(part)
    return size > 0 and any(words[start : start + size] == part for start in range(len(words) - size + 1))


def _nested(inner: str, outer: str) -> bool:
    """True if one choice's words are a proper part of another's."""
    return len(_words(inner)) < len(_words(outer)) and _contains(_words(outer), _words(inner))


_Scorer = Callable[[str, str, list[str]], float]
_OFFICIAL: dict[str, _Scorer] = {
    "rouge_l": lambda prediction, reference, _: rouge_l_milebench(prediction, reference),
    "choice": _official_choice_score,
    "contains": lambda prediction, reference, _: float(reference in prediction),
    "contains_word": lambda prediction, reference, _: float(reference in prediction.split()),
}
_SANE: dict[str, _Scorer] = {
    "rouge_l": lambda prediction, reference, _: rouge_l(prediction, reference),
    "choice": _sane_choice_score,
    "contains": lambda prediction, reference, _: float(_contains(_words(prediction), _words(reference))),
    "contains_word": lambda prediction, reference, _: float(_contains(_words(prediction), _words(reference))),
}
