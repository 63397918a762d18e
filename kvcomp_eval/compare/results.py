"""A finished run, read back from its journal: cells, answers, metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcomp_eval.compare.config import Cell, Config, Row
from kvcomp_eval.compare.journal import JournalError, journal_files, read_lines
from kvcomp_eval.compare.record import CellRecord, read_records


@dataclass(frozen=True)
class Run:
    """One run's folder.

    Parameters
    ----------
    folder : Path
    config : Config
        As of the latest start.
    machine : dict
    records : dict
        Cell key -> record.
    """

    folder: Path
    config: Config
    machine: dict[str, Any]
    records: dict[str, CellRecord]

    def complete(self) -> list[CellRecord]:
        """Records of cells that were scored."""
        return [record for record in self.records.values() if record.scores is not None and record.cell is not None]

    def failed(self) -> dict[str, str]:
        """Cell key -> error, for cells that ended with one."""
        return {key: record.error for key, record in self.records.items() if record.error is not None}

    def unfinished(self) -> list[str]:
        """Keys of cells that were neither scored nor failed."""
        return [key for key, record in self.records.items() if record.scores is None and record.error is None]


def read_run(folder: Path) -> Run:
    """Read a run's folder.

    Raises
    ------
    JournalError
        There is no journal, or none of a started run.
    """
    files = journal_files(folder)
    if not files:
        raise JournalError(f"{folder} holds no journal; name the folder of a `kvcomp-eval compare` run.")
    starts = [line for line in read_lines(files[0]) if line["kind"] == "run"]
    if not starts:
        raise JournalError(f"{folder} holds a run that never started; run `kvcomp-eval compare` again.")
    config = Config.model_validate(starts[-1]["config"])
    return Run(folder, config, starts[-1]["machine"], read_records(files))


def merge_runs(runs: list[Run]) -> Run:
    """Several runs as one; a cell that occurs in two of them must have the same settings.

    Raises
    ------
    JournalError
        The runs name different reference methods.
    """
    first = runs[0]
    if len(runs) == 1:
        return first
    references = {run.config.reference_label for run in runs}
    if len(references) > 1:
        raise JournalError(f"These runs have different reference methods ({', '.join(sorted(references))}).")
    records: dict[str, CellRecord] = {}
    for run in runs:
        for key, record in run.records.items():
            if records.setdefault(key, record).fingerprint != record.fingerprint:
                raise JournalError(
                    f"{run.folder} and {first.folder} both hold cell '{key}', under different settings; "
                    "give the methods labels of their own."
                )
            if records[key].scores is None:
                records[key] = record
    return Run(first.folder, first.config, first.machine, records)


@dataclass(frozen=True)
class RowTask:
    """One row on one task, all seeds together.

    Parameters
    ----------
    row : Row
    task : str
    records : tuple of CellRecord
        One per seed.
    full : tuple of CellRecord
        The uncompressed cells of the same seeds.
    """

    row: Row
    task: str
    records: tuple[CellRecord, ...]
    full: tuple[CellRecord, ...]

    @property
    def main(self) -> str | None:
        """Metric that the configuration names for the ranking."""
        return self.records[0].cell.metric if self.records[0].cell else None

    @property
    def invalid(self) -> list[str]:
        """Violated guards."""
        return list(dict.fromkeys(text for record in self.records for text in (record.scores or {}).get("invalid", [])))

    @property
    def departures(self) -> list[str]:
        """What valid rows hold beside their budget by design."""
        scores = [record.scores or {} for record in self.records]
        return list(dict.fromkeys(text for found in scores for text in found.get("departures", [])))

    def answers(self) -> Iterable[tuple[int, dict[str, Any], dict[str, Any]]]:
        """Document, answer, and the uncompressed model's answer to it; seed by seed."""
        for record, full in zip(self.records, self.full, strict=True):
            for key, answer in sorted(record.answers.items()):
                if key in full.answers:
                    yield key[1], answer, full.answers[key]

    def metric(self, name: str) -> dict[int, float]:
        """Document -> value of a task's metric, mean over seeds; documents without it are left out."""
        values: dict[int, list[float]] = {}
        for record in self.records:
            for document, entry in (record.scores or {})["documents"].items():
                if name in entry["metrics"]:
                    values.setdefault(int(document), []).append(entry["metrics"][name])
        return {document: sum(found) / len(found) for document, found in sorted(values.items())}

    def aggregated(self) -> dict[str, float]:
        """lmms-eval's own values, without the filter's name; mean over seeds."""
        names = dict.fromkeys(name for record in self.records for name in (record.scores or {})["aggregated"])
        return {name.partition(",")[0]: self._mean_aggregate(name) for name in names}

    def _mean_aggregate(self, name: str) -> float:
        found = [(record.scores or {})["aggregated"][name] for record in self.records]
        return sum(found) / len(found)

    def not_computed(self) -> dict[str, str]:
        """Metrics that the task could not compute, with the reason."""
        return {name: why for record in self.records for name, why in (record.scores or {})["not_computed"].items()}

    def higher_is_better(self, metric: str) -> bool:
        return bool((self.records[0].scores or {})["higher_is_better"].get(metric, True))


def group_cells(run: Run) -> list[RowTask]:
    """Rows on tasks, in the order of the configuration; only those whose uncompressed cells are there too."""
    by_place: dict[tuple[str, str], dict[int, CellRecord]] = {}
    for record in run.complete():
        assert record.cell is not None
        by_place.setdefault((record.cell.row.name, record.cell.task), {})[record.cell.seed] = record
    full_name = run.config.rows()[0].name
    found = []
    for (_, task), seeds in by_place.items():
        full = by_place.get((full_name, task), {})
        shared = sorted(seed for seed in seeds if seed in full)
        if shared:
            cell = _cell(seeds[shared[0]])
            own, reference = tuple(seeds[seed] for seed in shared), tuple(full[seed] for seed in shared)
            found.append(RowTask(cell.row, task, own, reference))
    order = {row.name: index for index, row in enumerate(run.config.rows())}
    return sorted(found, key=lambda item: order.get(item.row.name, len(order)))


def _cell(record: CellRecord) -> Cell:
    assert record.cell is not None
    return record.cell
