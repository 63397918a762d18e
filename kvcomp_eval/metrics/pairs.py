"""What a model wrapper leaves for a fidelity task: its answer to a document beside the uncompressed one.

lmms-eval hands a task the text of an answer alone. It gives the wrapper the task's documents, so they carry the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from datasets import DatasetDict

#: What is said of a task when it has no uncompressed answers.
NO_REFERENCE = (
    "compares answers with the uncompressed model's, which are not at hand; add reference=auto, or reference=FOLDER "
    "to keep them in a folder of yours, to the --model_args of a model of kvcomp-eval."
)


class Pair(NamedTuple):
    """Two answers to one document: texts, and tokens with the end token."""

    answer: str
    reference: str
    answer_tokens: Sequence[int]
    reference_tokens: Sequence[int]


class ComparedDocuments(DatasetDict):
    """Documents of a task whose answers are compared with the uncompressed model's.

    Attributes
    ----------
    pairs : dict
        Document id -> :class:`Pair`, filled by the wrapper in each process for the documents that it answered.
    """

    def __init__(self, splits: Any) -> None:
        super().__init__(splits)
        self.pairs: dict[int, Pair] = {}
