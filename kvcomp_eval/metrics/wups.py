"""WUPS of NExT-QA's open-ended answers (Xiao et al. 2021, https://arxiv.org/abs/2105.08276) under a frozen rule.

nltk 3.6 changed Wu-Palmer similarity between words of different kinds, which moves the benchmark's figure by more
than a point. So the rule is part of the name:

* ``legacy``: as in the official stack (nltk 3.3): an artificial common root only if the first word's synset is a verb.
* ``modern``: as since nltk 3.6, hence what lmms-eval gives today: also if either is not a noun.

Words are lemmatised as verbs, without a part-of-speech tagger (which moves the figure by at most 0.3 points).
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from kvcomp_eval.metrics.wordnet import find_wordnet, load_wordnet

Rule = Literal["legacy", "modern"]

#: Whether the artificial root may join two synsets, by the first one. True leaves it to nltk's own rule.
_ROOT: dict[str, Callable[[Any], bool]] = {
    "legacy": lambda first: first.pos() == "v",
    "modern": lambda first: True,
}
#: Question types whose answers count and place things: right or wrong, nothing between.
EXACT_TYPES = ("DC", "DB")
#: Similarities below the threshold are multiplied by this.
_PENALTY = 0.1


class Wups:
    """Scorer of short answers; safe to share among threads.

    Parameters
    ----------
    rule : str
        ``legacy`` or ``modern``.
    wordnet : path, optional
        Folder of WordNet's files; see :func:`kvcomp_eval.metrics.wordnet.find_wordnet`.

    Raises
    ------
    FileNotFoundError
        No WordNet: making the scorer before generating is the preflight check.
    """

    def __init__(self, rule: Rule = "modern", wordnet: str | Path | None = None) -> None:
        if rule not in _ROOT:
            raise ValueError(f"Unknown WUPS rule {rule!r}; choose from {', '.join(_ROOT)}.")
        self.rule = rule
        self._place = find_wordnet(wordnet)
        # nltk's reader seeks in open files, and lmms-eval scores in several threads.
        self._lock = threading.Lock()
        self._similarities: dict[tuple[str, str], float] = {}

    def score(
        self, prediction: str, reference: str, question_type: str, additional: str | None = None, threshold: float = 0.0
    ) -> float:
        """Score one answer, 0 to 1.

        Parameters
        ----------
        prediction, reference : str
        question_type : str
            CW, CH, TN, TC, TP, DL, DO, or DC and DB, which need equal words.
        additional : str, optional
            Second reference; the better one counts.
        threshold : float
            0 is the benchmark's "WUPS", 0.9 the stricter WUPS@0.9.
        """
        compare = self._exact if question_type in EXACT_TYPES else self._wups
        references = [reference, additional] if additional else [reference]
        with self._lock:
            words = self.words(prediction)
            return max(compare(words, self.words(text), threshold) for text in references)

    def words(self, text: str) -> list[str]:
        """Lemmas of a text without the benchmark's stop words."""
        from nltk.tokenize import word_tokenize

        stop = _stop_words()
        lemmas = (self._lemma(word.lower()) for word in word_tokenize(text, preserve_line=True))
        return word_tokenize(" ".join(lemma for lemma in lemmas if lemma not in stop), preserve_line=True)

    @property
    def _wordnet(self) -> Any:
        return load_wordnet(self._place)

    def _lemma(self, word: str) -> str:
        """Verb lemma; the Porter stem of a word that WordNet does not know, if it knows that."""
        lemma = self._wordnet.morphy(word, "v") or word
        if self._wordnet.synsets(lemma):
            return str(lemma)
        stem = _stemmer().stem(word)
        return str(stem) if self._wordnet.synsets(stem) else word

    def _exact(self, prediction: Sequence[str], reference: Sequence[str], threshold: float) -> float:
        return float(prediction == reference)

    def _wups(self, prediction: Sequence[str], reference: Sequence[str], threshold: float) -> float:
        return min(
            self._one_way(prediction, reference, threshold),
            self._one_way(reference, prediction, threshold),
        )

    def _one_way(self, words: Sequence[str], others: Sequence[str], threshold: float) -> float:
        """Product over words of the best similarity; words like none of the others are skipped."""
        best = [max((self._thresholded(word, other, threshold) for other in others), default=0.0) for word in words]
        found = [similarity for similarity in best if similarity > 0]
        product = 1.0
        for similarity in found:
            product *= similarity
        return product if found else 0.0

    def _thresholded(self, word: str, other: str, threshold: float) -> float:
        if word == other:
            return 1.0
        similarity = self._similarity(word, other)
        return similarity if similarity >= threshold else _PENALTY * similarity

    def _similarity(self, word: str, other: str) -> float:
        """Wu-Palmer similarity of the first synset of each; 0 without one, or without a common ancestor."""
        if (word, other) not in self._similarities:
            first, second = (self._wordnet.synsets(each)[:1] for each in (word, other))
            value = (
                first[0].wup_similarity(second[0], simulate_root=_ROOT[self.rule](first[0])) if first and second else 0
            )
            self._similarities[word, other] = float(value or 0)
        return self._similarities[word, other]


def wups_by_group(scores: Sequence[float], question_types: Sequence[str]) -> Mapping[str, float]:
    """Means x 100: ``WUPS`` over all questions and ``WUPS_C``, ``WUPS_T``, ``WUPS_D`` by the type's first letter.

    Causal (CW, CH), temporal (TN, TC, TP) and descriptive questions (DL, DO, DC, DB); a group without questions is
    left out.
    """
    groups: dict[str, list[float]] = {"WUPS": list(scores)}
    for score, kind in zip(scores, question_types, strict=True):
        groups.setdefault(f"WUPS_{kind[0]}", []).append(score)
    return {name: 100 * sum(values) / len(values) for name, values in groups.items() if values}


@lru_cache(maxsize=1)
def _stop_words() -> frozenset[str]:
    """The benchmark's list, from the file that lmms-eval ships; its task module cannot be imported safely."""
    package = importlib.util.find_spec("lmms_eval")
    assert package is not None
    assert package.origin is not None
    lines = (Path(package.origin).parent / "tasks" / "nextqa" / "stopwords.csv").read_text(encoding="utf-8").split()
    return frozenset(lines[1:])


@lru_cache(maxsize=1)
def _stemmer() -> Any:
    from nltk.stem import PorterStemmer

    return PorterStemmer()
