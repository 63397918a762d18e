"""Run a comparison: hand out the cells, keep the record of what comes back, check the guards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from kvcomp_eval.compare.config import FULL, Cell, Config
from kvcomp_eval.compare.evaluator import Evaluator, Outcome, Preparation
from kvcomp_eval.compare.fingerprint import fingerprint
from kvcomp_eval.compare.guards import departures, violations
from kvcomp_eval.compare.journal import Journal, journal_files
from kvcomp_eval.compare.progress import RunProgress
from kvcomp_eval.compare.record import CellRecord, read_records


class Engine(Protocol):
    """Where cells are evaluated: :class:`Evaluator` in this process, or workers on other machines."""

    def prepare(self) -> Preparation:
        """Load what is needed; raises ConfigError."""
        ...

    def outcomes(
        self, cells: Sequence[Cell], records: dict[str, CellRecord], progress: RunProgress
    ) -> Iterator[tuple[Cell, Outcome]]:
        """Evaluate cells, an uncompressed one before those that are compared with it; answers go to the records."""
        ...


class Runner:
    """One process of a run.

    Parameters
    ----------
    config : Config
    journal : Journal
        Of this process.
    rank, world_size : int
        Which process, of how many that share the documents of every cell.
    """

    def __init__(self, config: Config, journal: Journal, rank: int = 0, world_size: int = 1) -> None:
        self.config = config
        self.journal = journal
        self.rank = rank
        self._world_size = world_size
        self._evaluator = Evaluator(config)
        self.cells, self.tasks = self._evaluator.cells, self._evaluator.tasks
        self.records = read_records(journal_files(journal.folder))

    @classmethod
    @contextmanager
    def in_folder(cls, config: Config, folder: Path) -> Iterator[Runner]:
        """A runner that writes to a folder, as the process that the launcher says it is.

        Raises
        ------
        ConfigError, JournalError
            A task is unknown, or the folder cannot be read or written.
        """
        rank, size = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
        with Journal(folder, f"rank{rank}" if rank else "") as journal:
            yield cls(config, journal, rank, size)

    def run(self, quiet: bool, engine: Engine | None = None) -> list[str]:
        """Run every cell that the journal does not hold yet.

        Parameters
        ----------
        quiet : bool
        engine : Engine, optional
            Where; default: this process.

        Returns
        -------
        list of str
            What went wrong: failed cells and violated guards; empty after a clean run.

        Raises
        ------
        ConfigError, JournalError
            Nothing was run, or the record could not be written; what is in the journal stays.
        """
        engine = engine or self._evaluator
        found = engine.prepare()
        ready = [cell for cell in self.cells if cell.task not in found.missing]
        for cell in ready:
            self._prepare_record(cell, found.settings[cell.key])
        if self.rank == 0:
            self.journal.append([{"kind": "run", "config": self.config.model_dump(), "machine": found.machine}])
        sizes = {cell.key: (found.documents[cell.key], len(self.records[cell.key].answers)) for cell in ready}
        scored = [cell for cell in ready if self.records[cell.key].scores is not None]
        others = [cell for cell in ready if self.records[cell.key].scores is None]
        problems = []
        with RunProgress(sizes, disable=quiet) as progress:
            for cell in scored:
                problems += self._announce(cell, progress)
            for cell, outcome in engine.outcomes(others, self.records, progress):
                problems += self._conclude(cell, outcome, progress)
        return problems + [f"{cell.key}: {found.missing[cell.task]}" for cell in self.cells if cell not in ready]

    def _prepare_record(self, cell: Cell, settings: dict[str, Any]) -> None:
        """Compare the cell's settings with those of the journal before anything is generated."""
        record = self.records.setdefault(cell.key, CellRecord(cell.key))
        record.journal, record.guards = self.journal, self.config.guards
        record.start(cell, fingerprint(settings), settings)

    def _conclude(self, cell: Cell, outcome: Outcome, progress: RunProgress) -> list[str]:
        """Record how a cell ended."""
        record = self.records[cell.key]
        if outcome.scores is None:
            record.fail(outcome.error)
            progress.finish(cell.key, f"failed: {outcome.error}")
            progress.log(outcome.traceback)
            return [f"{cell.key}: {outcome.error}"]
        if self.rank == 0:
            record.finish({**outcome.scores, **self._verdicts(cell)})
        else:
            record.scores = {}
        return self._announce(cell, progress)

    def _announce(self, cell: Cell, progress: RunProgress) -> list[str]:
        """Show a scored cell; returns the guards that it violates."""
        scores = self.records[cell.key].scores or {}
        problems = [f"INVALID, {problem}" for problem in scores.get("invalid", [])]
        progress.finish(cell.key, "; ".join(problems), "; ".join(scores.get("departures", [])))
        return [f"{cell.key}: {problem}" for problem in problems]

    def _verdicts(self, cell: Cell) -> dict[str, list[str]]:
        """Check the guards on the answers of all processes."""
        records = self.records if self._world_size == 1 else read_records(journal_files(self.journal.folder))
        full = None if cell.row.method == FULL else records.get(full_key(self.config, cell))
        record = records[cell.key]
        return {
            "invalid": violations(record, cell.row, full, self.config.guards),
            "departures": departures(record, cell.row),
        }


def full_key(config: Config, cell: Cell) -> str:
    """Key of the uncompressed cell that a cell is compared with."""
    return Cell(config.rows()[0], cell.task, cell.limit, cell.seed).key
