"""The worst answers of a run, with what the model was shown and where they leave the uncompressed answer."""

from __future__ import annotations

import base64
import difflib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvcomp_eval.compare.results import RowTask, Run, group_cells
from kvcomp_eval.metrics.fidelity import fidelity_of, first_divergent_token

#: Longer side of an image in the page, pixels.
THUMBNAIL = 220


@dataclass(frozen=True)
class Sample:
    """One bad answer.

    Parameters
    ----------
    pieces : list of (str, bool)
        The answer in runs of words; True where the uncompressed answer reads otherwise.
    divergence : int or None
        Tokens that both answers share from the start.
    images : list of str
        Data URLs; empty if the task's data is not there.
    """

    task: str
    document: int
    row: str
    fidelity: float
    question: str
    target: str
    full: str
    answer: str
    pieces: list[tuple[str, bool]]
    divergence: int | None
    images: list[str]


#: Task and document -> question and images.
Shown = Callable[[str, int], tuple[str, list[str]]]


def worst_samples(run: Run, shown: Shown, count: int = 10) -> list[Sample]:
    """The least faithful answers, at most one per document, fewest first; only answers that differ at all."""
    found: dict[tuple[str, int], tuple[float, RowTask, dict[str, Any], dict[str, Any]]] = {}
    for cell in group_cells(run):
        if cell.row.budget is None or cell.invalid:
            continue
        for document, ours, theirs in cell.answers():
            value = fidelity_of(ours["answer"], theirs["answer"])
            key = (cell.task, document)
            if ours["answer"] != theirs["answer"] and (key not in found or value < found[key][0]):
                found[key] = (value, cell, ours, theirs)
    worst = sorted(found.items(), key=lambda item: (item[1][0], item[0]))[:count]
    return [_sample(key, *entry, shown) for key, entry in worst]


def _sample(
    key: tuple[str, int], value: float, cell: RowTask, ours: dict[str, Any], theirs: dict[str, Any], shown: Shown
) -> Sample:
    question, images = shown(*key)
    documents = (cell.records[0].scores or {})["documents"]
    return Sample(
        task=key[0],
        document=key[1],
        row=cell.row.name,
        fidelity=value,
        question=question,
        target=documents.get(str(key[1]), {}).get("target", ""),
        full=theirs["answer"],
        answer=ours["answer"],
        pieces=marked(ours["answer"], theirs["answer"]),
        divergence=first_divergent_token(ours["tokens"], theirs["tokens"]),
        images=images,
    )


def marked(answer: str, reference: str) -> list[tuple[str, bool]]:
    """The answer's words in runs; True where they are not the reference's."""
    words, expected = answer.split(), reference.split()
    matcher = difflib.SequenceMatcher(a=expected, b=words, autojunk=False)
    return [
        (" ".join(words[start:end]), kind != "equal") for kind, _, _, start, end in matcher.get_opcodes() if start < end
    ]


def shown_by_tasks(load: Callable[[str], Any]) -> Shown:
    """Question and thumbnails out of lmms-eval's task objects; nothing where a task cannot be loaded.

    Parameters
    ----------
    load : callable
        Task name -> task object.
    """

    def shown(name: str, document: int) -> tuple[str, list[str]]:
        try:
            task = load(name)
            doc = task.eval_docs[document]
            visuals = task.doc_to_visual(doc) or []
            return str(task.doc_to_text(doc)), [data_url(item) for item in visuals if hasattr(item, "convert")]
        except Exception as error:  # the data may have gone since the run; the answers are still worth showing
            return f"(the task's data cannot be read: {error})", []

    return shown


def data_url(image: Any) -> str:
    """A small JPEG of a PIL image as a ``data:`` URL."""
    small = image.convert("RGB")
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    small.save(file, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
