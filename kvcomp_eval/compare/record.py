"""What is known of one cell: read from the journal, added to while it runs."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvcomp_eval.compare.config import Cell, Guards, Row
from kvcomp_eval.compare.fingerprint import differences
from kvcomp_eval.compare.journal import JournalError, LineWriter, read_lines
from kvcomp_eval.report import SUMMED_FIGURES

#: Task and document.
AnswerKey = tuple[str, int]

#: Figures of a call's report that go into the journal.
REPORT_FIGURES = (*SUMMED_FIGURES, "full_entries", "reads_per_step")


#: Folder of trace files, beside the journal.
TRACES = "traces"

#: Why a guard asked for an answer: alone instead of in a batch, once more at the end, at 100 % budget.
ALONE, REPEAT, WHOLE = "alone", "repeat", "whole"


@dataclass
class CellRecord:
    """Lines of one cell."""

    key: str
    guards: Guards = field(default_factory=Guards)
    cell: Cell | None = None
    settings: dict[str, Any] | None = None
    fingerprint: str = ""
    answers: dict[AnswerKey, dict[str, Any]] = field(default_factory=dict)
    guard_answers: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    forced: dict[AnswerKey, dict[str, Any]] = field(default_factory=dict)
    scores: dict[str, Any] | None = None
    error: str | None = None
    #: Finished traces of the method's decode steps.
    traces: list[Path] = field(default_factory=list)
    journal: LineWriter | None = None

    def add(self, answers: list[dict[str, Any]]) -> None:
        """Write a batch of answers, then know them."""
        self._write([{"kind": "answer", "cell": self.key, **line} for line in answers])
        self.answers |= {(line["task"], line["doc_id"]): line for line in answers}

    def add_guard(self, guard: str, answer: dict[str, Any]) -> None:
        """Write an answer that a guard asked for."""
        self._write([{"kind": "guard", "guard": guard, "cell": self.key, **answer}])
        self.guard_answers[guard, answer["task"], answer["doc_id"]] = answer

    def new_trace(self) -> Path:
        """Name for another trace file of this cell; no process and no earlier start has it."""
        assert self.journal is not None
        name = re.sub(r"\W+", "-", self.key)[:80]
        return self.journal.folder / TRACES / f"{name}-{uuid.uuid4().hex[:8]}.parquet"

    def add_trace(self, path: Path) -> None:
        """Note a finished trace file."""
        self._write([{"kind": "trace", "cell": self.key, "file": path.name}])
        self.traces.append(path)

    def add_forced(self, figures: dict[str, Any]) -> None:
        """Write how far the method's predictions are from the full cache's along its answer to one document."""
        self._write([{"kind": "forced", "cell": self.key, **figures}])
        self.forced[figures["task"], figures["doc_id"]] = figures

    def take(self, lines: list[dict[str, Any]], traces: dict[str, bytes]) -> None:
        """Write lines of this cell that another process made, and the trace files that they name; then know them."""
        assert self.journal is not None
        folder = self.journal.folder
        try:
            for name, content in traces.items():
                (folder / TRACES).mkdir(exist_ok=True)
                (folder / TRACES / name).write_bytes(content)
        except OSError as error:
            raise JournalError(f"{folder / TRACES} could not be written ({error.strerror}).") from error
        self._write(lines)
        for line in lines:
            self.read(line, folder)

    def asked(self, guard: str) -> dict[AnswerKey, dict[str, Any]]:
        """Answers that a guard asked for."""
        return {key[1:]: line for key, line in self.guard_answers.items() if key[0] == guard}

    def alone(self, key: AnswerKey) -> dict[str, Any]:
        """The answer to a document, generated alone."""
        return self.guard_answers.get((ALONE, *key)) or self.answers[key]

    def start(self, cell: Cell, fingerprint: str, settings: dict[str, Any]) -> None:
        """Announce the cell, or refuse to go on if its settings changed.

        Raises
        ------
        JournalError
            The journal holds answers of other settings.
        """
        if self.settings is None or (self.fingerprint == fingerprint and self.cell != cell):
            line = {"identity": asdict(cell), "fingerprint": fingerprint, "settings": settings}
            self._write([{"kind": "cell", "cell": self.key, **line}])
            self.cell, self.settings, self.fingerprint = cell, settings, fingerprint
        if self.fingerprint != fingerprint:
            assert self.journal is not None
            raise JournalError(
                f"{self.journal.folder} holds answers of cell '{self.key}' under other settings: "
                f"{'; '.join(differences(self.settings, settings))}. Restore them, or use another --output."
            )

    def finish(self, scores: dict[str, Any]) -> None:
        """Write the metrics of the complete cell."""
        self._write([{"kind": "scores", "cell": self.key, **scores}])
        self.scores, self.error = scores, None

    def fail(self, error: str) -> None:
        """Write why the cell ended."""
        self._write([{"kind": "failed", "cell": self.key, "error": error}])
        self.error = error

    def _write(self, lines: list[dict[str, Any]]) -> None:
        if self.journal is not None:
            self.journal.append(lines)

    def read(self, line: dict[str, Any], folder: Path) -> None:
        """Take in one line of the journal in a folder."""
        kind = line["kind"]
        content = {name: value for name, value in line.items() if name not in ("kind", "cell", "guard")}
        if kind == "cell":
            self.settings, self.fingerprint = line["settings"], line["fingerprint"]
            self.cell = Cell(**line["identity"] | {"row": Row(**line["identity"]["row"])})
        elif kind == "answer":
            self.answers[line["task"], line["doc_id"]] = content
        elif kind == "guard":
            self.guard_answers[line["guard"], line["task"], line["doc_id"]] = content
        elif kind == "trace":
            self.traces.append(folder / TRACES / line["file"])
        elif kind == "forced":
            self.forced[line["task"], line["doc_id"]] = content
        elif kind == "scores":
            self.scores, self.error = content, None
        elif kind == "failed":
            self.error = line["error"]


def key_of(request: Any) -> AnswerKey:
    """Task and document of one of lmms-eval's requests."""
    return request.args[4], request.args[3]


def read_records(files: Iterable[Path]) -> dict[str, CellRecord]:
    """Cell key -> what the journals know of it."""
    records: dict[str, CellRecord] = {}
    for path in files:
        for line in read_lines(path):
            if "cell" in line:
                records.setdefault(line["cell"], CellRecord(line["cell"])).read(line, path.parent)
    return records
