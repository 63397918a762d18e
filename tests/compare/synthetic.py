"""Journals of made-up runs: answers and figures without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvcomp_eval.compare.config import Cell, Config
from kvcomp_eval.compare.journal import Journal
from kvcomp_eval.compare.record import REPEAT, REPORT_FIGURES, WHOLE, CellRecord

TASK = "made_up"
FULL_BYTES = 100_000
WORDS = ["large", "red", "circle", "left", "of", "a", "small", "blue", "square", "under", "one", "green", "star"]
MACHINE = {"processor": "none", "cores": 2, "gpus": [], "versions": {"kvcomp-eval": "0"}}


def config(**changes: Any) -> Config:
    """A grid of two methods at two budgets on one task."""
    data: dict[str, Any] = {
        "name": "made-up",
        "model": {"family": "qwen2_5_vl", "args": {"pretrained": "demo"}},
        "methods": ["snapkv", "random"],
        "budgets": [0.2, 0.1],
        "tasks": [{"task": TASK, "limit": 12}],
    }
    return Config.model_validate(data | changes)


def answer(document: int, changed: int = 0) -> str:
    """A sentence about a document; its last ``changed`` words differ from the uncompressed answer."""
    words = [str(document), *WORDS]
    return " ".join(words[: len(words) - changed] + ["nothing"] * changed)


def line(document: int, text: str, ratio: float, score: float = 1.0) -> dict[str, Any]:
    """One answer as the journal has it; ``score`` is only for :func:`write_cell`."""
    report = dict.fromkeys(REPORT_FIGURES, 0) | {
        "device_bytes": ratio * FULL_BYTES,
        "full_bytes": FULL_BYTES,
        "kept_entries": int(1000 * ratio),
        "full_entries": 1000,
    }
    timing = {"prefill_seconds": 0.1, "prefill_seconds_cpu": 0.1, "step_us": [5000, 6000], "step_us_cpu": [4000, 4500]}
    return {
        "task": TASK,
        "doc_id": document,
        "answer": text,
        "tokens": [sum(map(ord, word)) for word in text.split()],
        "input_tokens": 500,
        "report": report,
        "planned_bytes": ratio * FULL_BYTES,
        "declared_bytes": ratio * FULL_BYTES,
        "timing": timing | {"prefill_peak": 10**9, "decode_peak": 10**9},
    }


def write_run(folder: Path, changed: dict[str, list[int]], made: Config | None = None, **scores: Any) -> Config:
    """Write a finished run.

    Parameters
    ----------
    folder : Path
    changed : dict
        Row name -> per document the number of words that differ from the full cache's answer; a document scores 1
        if there are none.
    made : Config, optional
    scores : Any
        Added to the ``scores`` of every cell.
    """
    made = made or config()
    with Journal(folder) as journal:
        journal.append([{"kind": "run", "config": made.model_dump(), "machine": MACHINE}])
        for cell in made.cells({TASK: [TASK]}):
            if cell.row.name in changed:
                write_cell(journal, cell, changed[cell.row.name], **scores)
    return made


def write_cell(journal: Journal, cell: Cell, changed: list[int], **scores: Any) -> None:
    """Write one finished cell."""
    record = CellRecord(cell.key, journal=journal)
    record.start(cell, f"fingerprint of {cell.key}", {"task": {"name": TASK}, "limit": cell.limit})
    ratio = cell.row.budget or 1.0
    answers = [line(document, answer(document, words), ratio) for document, words in enumerate(changed)]
    record.add(answers)
    positions = {"positions": {"prompt": "same", "steps": [1, 2]}}
    record.add_guard(REPEAT, answers[0] | positions)
    for document in range(2):
        record.add_guard(WHOLE, line(document, answer(document), 1.0))
    values = [float(words == 0) for words in changed]
    documents = {str(index): {"metrics": {"hit": value}, "target": "it"} for index, value in enumerate(values)}
    aggregated = {"hit,none": sum(values) / len(values)}
    usual = {
        "aggregated": aggregated,
        "not_computed": {},
        "higher_is_better": {"hit": True},
        "documents": documents,
        "invalid": [],
    }
    record.finish(usual | scores)
