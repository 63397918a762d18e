"""Caption metrics of the COCO evaluation (package ``pycocoevalcap``) and CAPTURE, each built only when asked for.

A metric whose Java or model is missing gives a :class:`~kvcomp_eval.metrics.result.NotComputed`; the others go on.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcomp_eval.metrics.caption_tokens import java_missing, stanford, treebank
from kvcomp_eval.metrics.result import NotComputed

#: Names as lmms-eval has them. CIDEr is CIDEr-D; its idf comes from the evaluated references, so a subset's value is
#: not comparable with the full split's.
METRICS = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr", "CAPTURE")

#: Ending of the names of scores on Java-free tokens, which are not to be compared with those on Java's.
PYTHON_TOKENS = "_python_tokens"

Captions = dict[int, list[str]]


@dataclass(frozen=True)
class CaptionScore:
    """A metric of a set of captions.

    Parameters
    ----------
    value : float
        Of the set: BLEU and METEOR pool their counts, the others are means.
    per_document : tuple of float
        In the order of the predictions.
    """

    value: float
    per_document: tuple[float, ...]


def missing_requirements(metrics: Sequence[str] = METRICS) -> dict[str, NotComputed]:
    """Metrics that cannot be computed here, and why: to be looked at before the first answer is generated."""
    found = {name: _REQUIREMENTS[name]() for name in _checked(metrics)}
    return {name: missing for name, missing in found.items() if missing is not None}


def caption_scores(
    predictions: Sequence[str], references: Sequence[Sequence[str]], metrics: Sequence[str] = METRICS
) -> dict[str, CaptionScore | NotComputed]:
    """Score one caption per document against its references.

    Parameters
    ----------
    predictions : sequence of str
    references : sequence of sequences of str
        At least one per document.
    metrics : sequence of str
        Names from :data:`METRICS`.

    Returns
    -------
    dict
        One entry per metric asked for. Without Java those that need its tokens are :class:`NotComputed`, and those
        that need only tokens are added under ``<name>_python_tokens``.
    """
    if len(predictions) != len(references) or not predictions or not all(references):
        raise ValueError(
            f"Captions need at least one document, and one prediction and a reference for each; got "
            f"{len(predictions)} predictions, {len(references)} lists of references."
        )
    missing = missing_requirements(metrics)
    ready = [name for name in metrics if name not in missing]
    scores: dict[str, CaptionScore | NotComputed] = {**missing}
    tokenised = [name for name in ready if name in _ON_TOKENS]
    if tokenised:
        scores |= _guarded(tokenised, lambda: _score(tokenised, *_tokens(predictions, references, stanford)))
    if "CAPTURE" in ready:
        scores |= _guarded(["CAPTURE"], lambda: _capture(predictions, references))
    if spare := [name for name in missing if name in _ON_TOKENS and name != "METEOR"]:
        found = _score(spare, *_tokens(predictions, references, lambda texts: [treebank(text) for text in texts]))
        scores |= {f"{name}{PYTHON_TOKENS}": score for name, score in found.items()}
    return scores


def _checked(metrics: Sequence[str]) -> Sequence[str]:
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        raise ValueError(f"Unknown caption metric {unknown[0]!r}; choose from {', '.join(METRICS)}.")
    return metrics


def _guarded(
    metrics: Sequence[str], compute: Callable[[], Mapping[str, CaptionScore | NotComputed]]
) -> Mapping[str, CaptionScore | NotComputed]:
    """Run a scorer; a failure after generation must not cost the answers, whatever it is."""
    try:
        return compute()
    except Exception as error:
        return dict.fromkeys(metrics, NotComputed(f"{type(error).__name__}: {error}"))


def _tokens(
    predictions: Sequence[str], references: Sequence[Sequence[str]], tokenise: Callable[[Sequence[str]], list[str]]
) -> tuple[Captions, Captions]:
    """References and predictions as lists of tokenised texts per document, tokenised in one call."""
    flat = iter(tokenise([*predictions, *(text for several in references for text in several)]))
    answers = {row: [next(flat)] for row in range(len(predictions))}
    return {row: [next(flat) for _ in several] for row, several in enumerate(references)}, answers


def _score(
    metrics: Sequence[str], references: Captions, predictions: Captions
) -> dict[str, CaptionScore | NotComputed]:
    """Scores on tokenised texts; BLEU's four orders come from one pass."""
    found: dict[str, CaptionScore | NotComputed] = {}
    for family in dict.fromkeys(_ON_TOKENS[name] for name in metrics):
        wanted = [name for name in metrics if _ON_TOKENS[name] is family]
        scores = _guarded(wanted, lambda family=family: family(references, predictions))  # type: ignore[misc]
        found |= {name: scores[name] for name in wanted}
    return found


def _bleu(references: Captions, predictions: Captions) -> dict[str, CaptionScore | NotComputed]:
    from pycocoevalcap.bleu.bleu import Bleu

    values, rows = Bleu(4).compute_score(references, predictions, verbose=0)
    return {f"Bleu_{order}": _caption_score(values[order - 1], rows[order - 1]) for order in range(1, 5)}


def _meteor(references: Captions, predictions: Captions) -> dict[str, CaptionScore | NotComputed]:
    from pycocoevalcap.meteor.meteor import Meteor

    scorer = Meteor()
    try:
        return {"METEOR": _caption_score(*scorer.compute_score(references, predictions))}
    finally:
        # A failure leaves the lock taken, and the scorer's destructor would wait for it for ever.
        if scorer.lock.locked():
            scorer.lock.release()


def _rouge_l(references: Captions, predictions: Captions) -> dict[str, CaptionScore | NotComputed]:
    from pycocoevalcap.rouge.rouge import Rouge

    return {"ROUGE_L": _caption_score(*Rouge().compute_score(references, predictions))}


def _cider(references: Captions, predictions: Captions) -> dict[str, CaptionScore | NotComputed]:
    from pycocoevalcap.cider.cider import Cider

    return {"CIDEr": _caption_score(*Cider().compute_score(references, predictions))}


def _capture(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, CaptionScore | NotComputed]:
    """CAPTURE (Dong et al. 2024, https://arxiv.org/abs/2405.19092) on raw texts, by package ``capture-metric``."""
    from capture_metric.capture import CAPTURE

    gold = {row: list(several) for row, several in enumerate(references)}
    return {"CAPTURE": _caption_score(*CAPTURE().compute_score(gold, {i: [p] for i, p in enumerate(predictions)}))}


def _caption_score(value: Any, rows: Any) -> CaptionScore:
    return CaptionScore(float(value), tuple(map(float, rows)))


def _capture_missing() -> NotComputed | None:
    if importlib.util.find_spec("capture_metric") is None:
        return NotComputed("CAPTURE needs the packages capture_metric, FactualSceneGraph and spacy; pip install them")
    import torch

    if not torch.cuda.is_available():
        return NotComputed("capture_metric runs on CUDA only, and this machine has none")
    return None


_Family = Callable[[Captions, Captions], dict[str, CaptionScore | NotComputed]]
_ON_TOKENS: dict[str, _Family] = {
    **{f"Bleu_{order}": _bleu for order in range(1, 5)},
    "METEOR": _meteor,
    "ROUGE_L": _rouge_l,
    "CIDEr": _cider,
}
_REQUIREMENTS: dict[str, Callable[[], NotComputed | None]] = {
    **dict.fromkeys(_ON_TOKENS, java_missing),
    "CAPTURE": _capture_missing,
}
