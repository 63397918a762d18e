"""The far side of a comparison with Ray: a process that has the model and no journal."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from kvcomp_eval.compare.config import Cell, Config
from kvcomp_eval.compare.evaluator import Evaluator, Outcome, Preparation, reason
from kvcomp_eval.compare.journal import JournalError
from kvcomp_eval.compare.record import TRACES, CellRecord


class Message(NamedTuple):
    """Lines for the journal, which the worker waits for; or how its cell ended.

    ``files`` are the trace files that the lines name.
    """

    lines: list[dict[str, Any]]
    files: dict[str, bytes]
    outcome: Outcome | None = None


class Relay:
    """Stands where a record takes a journal: :meth:`append` returns once the lines are on the driver's disk.

    Parameters
    ----------
    folder : Path
        For files that are not the journal.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages: SimpleQueue[Message] = SimpleQueue()
        #: Per message None, or why the driver could not write it.
        self.replies: SimpleQueue[JournalError | None] = SimpleQueue()

    def append(self, lines: Iterable[dict[str, Any]]) -> None:
        """Hand a batch of lines to the driver.

        Raises
        ------
        JournalError
            The driver could not write them.
        """
        batch = list(lines)
        names = [line["file"] for line in batch if line["kind"] == "trace"]
        self.messages.put(Message(batch, {name: (self.folder / TRACES / name).read_bytes() for name in names}))
        refusal = self.replies.get()
        if refusal is not None:
            raise refusal


class Worker:
    """Evaluates one cell at a time, in a thread of its own, so that the driver can ask for its lines meanwhile.

    After :meth:`prepare`, the driver calls :meth:`start`, and :meth:`proceed` for each message without an outcome.
    """

    def __init__(self, config: Config) -> None:
        self._evaluator = Evaluator(config)

    def prepare(self) -> Preparation:
        """Load data and model."""
        return self._evaluator.prepare()

    def start(self, cell: Cell, record: CellRecord) -> Message:
        """Begin a cell of which the record holds some answers already; returns its first message."""
        folder = TemporaryDirectory(prefix="kvcomp-")
        self._relay = record.journal = Relay(Path(folder.name))
        threading.Thread(target=self._evaluate, args=(cell, record, folder), daemon=True).start()
        return self._relay.messages.get()

    def proceed(self, refusal: JournalError | None) -> Message:
        """Go on after a message was written, or was not; returns the next one."""
        self._relay.replies.put(refusal)
        return self._relay.messages.get()

    def _evaluate(self, cell: Cell, record: CellRecord, folder: TemporaryDirectory[str]) -> None:
        try:
            with folder:
                outcome = self._evaluator.evaluate(cell, record)
        except BaseException as error:  # nobody else would hear of it
            outcome = Outcome(error=reason(error))
        self._relay.messages.put(Message([], {}, outcome))
