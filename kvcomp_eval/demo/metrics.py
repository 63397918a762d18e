"""Scores of an answer against its reference, on plain text."""

from __future__ import annotations

import re
from typing import Any

from kvcomp_eval.metrics.rouge import rouge_l

_ROW = re.compile(r"(\w+) row :")
_OBJECT = re.compile(r"column (\w+) (\w+ \w+ \w+)")
_IMAGE = re.compile(r"image (\w+) : ([^,.]*)")


def normalise(text: str) -> str:
    """Lower case, one space between words, no final full stop."""
    return " ".join(text.lower().split()).removesuffix(".").strip()


def exact(answer: str, reference: str) -> float:
    """Return 1.0 if both say the same words."""
    return float(normalise(answer) == normalise(reference))


def stated_facts(text: str, kind: str) -> set[tuple[str, str, str]]:
    """Return the facts that a description ("describe") or a list over images ("across") states.

    (row, column, object) for a description, ("image", number, object or "empty") for the other.
    """
    if kind == "across":
        return {("image", number, what.strip()) for number, what in _IMAGE.findall(normalise(text))}
    pieces = _ROW.split(normalise(text))
    rows = zip(pieces[1::2], pieces[2::2], strict=True)
    return {(row, column, what) for row, body in rows for column, what in _OBJECT.findall(body)}


def fact_scores(answer: str, reference: str, kind: str) -> tuple[float, float]:
    """Return (recall, F1) of the reference's facts; both are 1.0 if neither text states any."""
    stated, expected = stated_facts(answer, kind), stated_facts(reference, kind)
    if not expected and not stated:
        return 1.0, 1.0
    hits = len(stated & expected)
    return hits / max(1, len(expected)), 2 * hits / (len(stated) + len(expected))


def score(doc: dict[str, Any], answer: str) -> dict[str, float]:
    """Return every metric that applies to a document's kind."""
    kind, reference = doc["kind"], doc["answer"]
    if kind == "describe":
        recall, f1 = fact_scores(answer, reference, kind)
        return {
            "object_accuracy": recall,
            "object_f1": f1,
            "rouge_l": rouge_l(answer, reference),
            "accuracy": exact(answer, reference),
        }
    scores = {"accuracy": exact(answer, reference), "rouge_l": rouge_l(answer, reference)}
    if kind == "across":
        return {**scores, "object_accuracy": fact_scores(answer, reference, kind)[0]}
    return {**scores, f"accuracy_{kind}": scores["accuracy"]}
