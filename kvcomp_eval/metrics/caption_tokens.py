"""Caption tokens: the Stanford tokeniser that COCO's evaluation calls, and its Java-free stand-in."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvcomp_eval.metrics.result import NotComputed

#: Brackets as the Stanford tokeniser spells them after lower-casing. COCO's list of dropped punctuation has the
#: upper-case spellings, so these stay.
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}

#: Space after a full stop that ends a word of two letters or more. Treebank takes a full stop off its last word only,
#: so sentences go to it one by one.
_SENTENCE_END = re.compile(r"(?<=[^\s.]{2}\.)\s+")


def java_missing() -> NotComputed | None:
    """Why the Java tokeniser and METEOR cannot run; None if they can."""
    if shutil.which("java"):
        return None
    return NotComputed("java is not on PATH; install a Java runtime, e.g. the package default-jre-headless")


def stanford(texts: Sequence[str]) -> list[str]:
    """Tokens of each text, joined by spaces, punctuation dropped, as ``pycocoevalcap``'s ``PTBTokenizer`` gives them.

    That class writes beside its own file, which fails in a read-only installation; here the texts go through a pipe.

    Raises
    ------
    RuntimeError
        Java failed.
    """
    from pycocoevalcap.tokenizer import ptbtokenizer

    jar = Path(ptbtokenizer.__file__).with_name(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
    command = ["java", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    lines = "".join(" ".join(text.splitlines()) + "\n" for text in texts)
    done = subprocess.run(command, input=lines.encode(), capture_output=True, check=False)
    tokenised = done.stdout.decode().split("\n")[: len(texts)]
    if done.returncode or len(tokenised) != len(texts):
        raise RuntimeError(f"Java's tokeniser failed (exit {done.returncode}): {done.stderr.decode()[-300:].strip()}")
    return [_drop_punctuation(line.split()) for line in tokenised]


def treebank(text: str) -> str:
    """Tokens as :func:`stanford` gives them, from nltk's Treebank tokeniser, which needs neither Java nor data.

    It differs at abbreviations ("p.m.", "Dr.") and at rare runs of marks ("??"), so its scores are not to be compared
    with those on Java's tokens.
    """
    tokenise = _treebank_tokenizer().tokenize
    tokens = [token for sentence in _SENTENCE_END.split(text.lower()) for token in tokenise(sentence)]
    return _drop_punctuation([_BRACKETS.get(token, token) for token in tokens])


@lru_cache(maxsize=1)
def _treebank_tokenizer() -> Any:
    from nltk.tokenize import TreebankWordTokenizer

    return TreebankWordTokenizer()


def _drop_punctuation(tokens: Sequence[str]) -> str:
    from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS

    return " ".join(token for token in tokens if token not in PUNCTUATIONS)
