"""ROUGE-L (Lin 2004) in the three variants that papers report under one name.

=================== =============================== ======================== ==========================
function            tokens                          overlap                  score
=================== =============================== ======================== ==========================
`rouge_l`           runs of a-z and 0-9, lower case longest common           F1
                                                    subsequence
`rouge_l_coco`      Penn Treebank, lower case       the same                 F with beta 1.2
`rouge_l_milebench` between spaces, as given        sentence unions, unique  F1
                                                    words
=================== =============================== ======================== ==========================
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from kvcomp_eval.metrics.caption_tokens import treebank


@lru_cache(maxsize=1)
def _google_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=False)


def rouge_l(answer: str, reference: str) -> float:
    """ROUGE-L F1 of package ``rouge-score``, no stemmer; 0 if either side has no word."""
    return float(_google_scorer().score(reference, answer)["rougeL"].fmeasure)


def rouge_l_coco(answer: str, references: str | Sequence[str]) -> float:
    """ROUGE-L of the COCO caption evaluation (package ``pycocoevalcap``).

    Precision and recall are each the best over the references, then weighted with beta 1.2. Tokens come from the
    Java-free tokeniser of :mod:`kvcomp_eval.metrics.caption_tokens`, so the value does not depend on the machine.
    """
    from pycocoevalcap.rouge.rouge import Rouge

    several = (references,) if isinstance(references, str) else references
    return float(Rouge().calc_score([treebank(answer)], [treebank(reference) for reference in several]))


def rouge_l_milebench(answer: str, reference: str) -> float:
    """ROUGE-L F1 of package ``rouge`` 1.0.1, which MileBench calls; 0 for an answer without a word.

    Case counts, and the texts are split at full stops. MileBench gives it processed texts, see
    :mod:`kvcomp_eval.metrics.milebench`.
    """
    from rouge import Rouge

    if not answer.replace(".", "").strip() or not reference.replace(".", "").strip():
        return 0.0
    return float(Rouge(metrics=["rouge-l"]).get_scores(answer, reference)[0]["rouge-l"]["f"])
