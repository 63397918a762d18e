"""Tables of a run: rows with intervals, costs and ranks among rows of equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcomp_eval.compare.clusters import document_clusters
from kvcomp_eval.compare.config import ConfigError
from kvcomp_eval.compare.efficiency import costs
from kvcomp_eval.compare.fidelity import FIDELITY, SAME, fidelity_measures, fidelity_values
from kvcomp_eval.compare.results import RowTask, Run, group_cells
from kvcomp_eval.compare.significance import Measure, Values, add_measure
from kvcomp_eval.metrics.statistics import Clusters

#: Rows hold equal bytes if they differ by at most this share.
EQUAL_BYTES = 0.02
#: Measure over all tasks: main metric of each task.
SCORE = "score"


@dataclass(frozen=True)
class _Facts:
    """What all tables are made from.

    Parameters
    ----------
    run : Run
    clusters : mapping
        Document -> images or videos that it is about.
    fidelity : dict
        Row name and task -> :func:`fidelity_values`.
    """

    run: Run
    clusters: Clusters
    fidelity: dict[tuple[str, str], dict[str, Values]]

    def fidelity_of(self, group: list[RowTask]) -> dict[str, Values]:
        """Measure -> document -> value, over all tasks of a row."""
        found = [self.fidelity[cell.row.name, cell.task] for cell in group]
        return {name: _union(values[name] for values in found) for name in found[0]}


def leaderboard(run: Run) -> dict[str, Any]:
    """All tables of a run, JSON-able.

    Returns
    -------
    dict
        ``summary``: rows over all tasks; ``tasks``: task -> rows. A row has its name, budget, costs, violated guards,
        anchor and band (places of the reference rows of equal nominal budget and of equal bytes, or None), rank in
        the band, and measures with intervals.
    """
    cells = group_cells(run)
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    per_task = {task: [cell for cell in cells if cell.task == task] for task in tasks}
    facts = _Facts(
        run,
        document_clusters(run.records.values()),
        {(cell.row.name, cell.task): fidelity_values(cell) for cell in cells},
    )
    return {
        "reference": run.config.reference_label,
        "summary": _summary(cells, per_task, facts),
        "tasks": {task: _task_table(found, facts) for task, found in per_task.items()},
        "main_metrics": {task: main_metric(found[0]) for task, found in per_task.items()},
    }


def main_metric(cell: RowTask) -> str:
    """The metric that decides a task's ranking: the configuration's, else the task's first.

    Raises
    ------
    ConfigError
        The task has no metric of that name.
    """
    found = cell.aggregated()
    if cell.main is not None and cell.main not in found:
        raise ConfigError(f"Task {cell.task} has no metric {cell.main!r}; it has {', '.join(found)}.")
    return cell.main or next(iter(found), FIDELITY)


def _summary(cells: list[RowTask], per_task: dict[str, list[RowTask]], facts: _Facts) -> list[dict[str, Any]]:
    """Rows over the documents of all tasks; rows that miss a task are left out."""
    names = dict.fromkeys(cell.row.name for cell in cells)
    groups = [[cell for cell in cells if cell.row.name == name] for name in names]
    groups = [group for group in groups if len(group) == len(per_task)]
    mains = {task: main_metric(found[0]) for task, found in per_task.items()}
    measures = fidelity_measures([facts.fidelity_of(group) for group in groups], tested=(FIDELITY, SAME))
    if all(found[0].higher_is_better(mains[task]) for task, found in per_task.items()):
        scores = [_union(_metric(cell, mains[cell.task]) for cell in group) for group in groups]
        measures.append(Measure(SCORE, scores))
    return _table(groups, measures, facts)


def _task_table(cells: list[RowTask], facts: _Facts) -> list[dict[str, Any]]:
    main = main_metric(cells[0])
    names = dict.fromkeys([main, *(name for cell in cells for name in cell.aggregated())])
    measures = [
        Measure(name, [_metric(cell, name) for cell in cells], cells[0].higher_is_better(name), name == main)
        for name in names
    ]
    measures += fidelity_measures([facts.fidelity_of([cell]) for cell in cells], tested=(FIDELITY,))
    rows = _table([[cell] for cell in cells], measures, facts)
    for row, cell in zip(rows, cells, strict=True):
        row["not_computed"] = cell.not_computed()
        _take_aggregates(row, cell)
        row["paper"] = _published(facts.run, cell)
    return rows


def _take_aggregates(row: dict[str, Any], cell: RowTask) -> None:
    """Show lmms-eval's own value; where it is no mean over documents there is no interval."""
    for name, value in cell.aggregated().items():
        measure = row["measures"].get(name)
        if measure is None or not np.isclose(measure["value"], value, rtol=1e-6, atol=1e-9):
            row["measures"][name] = {"value": value, "low": None, "high": None, "documents": None, "clusters": None}


def _published(run: Run, cell: RowTask) -> list[dict[str, Any]]:
    return [figure for table in run.config.paper for figure in table.published(cell.row.name, cell.task)]


def _metric(cell: RowTask, name: str) -> Values:
    return {(cell.task, document): value for document, value in cell.metric(name).items()}


def _union(parts: Iterable[Values]) -> Values:
    return {key: value for part in parts for key, value in part.items()}


def _table(groups: list[list[RowTask]], measures: list[Measure], facts: _Facts) -> list[dict[str, Any]]:
    """One line per row of the leaderboard; the first measure decides the rank."""
    reference = facts.run.config.reference_label
    rows = [_line(group, bool(facts.run.machine["gpus"])) for group in groups]
    bands = band_of([row["costs"]["device_bytes"] for row in rows], [row["label"] == reference for row in rows])
    anchors = {row["budget"]: index for index, row in enumerate(rows) if row["label"] == reference}
    for row, band in zip(rows, bands, strict=True):
        row |= {"band": band, "anchor": anchors.get(row["budget"]), "measures": {}}
    for measure in measures:
        add_measure(rows, measure, facts.clusters)
    _rank(rows, measures[0])
    return rows


def _line(cells: list[RowTask], on_gpu: bool) -> dict[str, Any]:
    row = cells[0].row
    return {
        "name": row.name,
        "label": row.label,
        "method": row.method,
        "parameters": row.parameters,
        "budget": row.budget,
        "costs": costs(cells, on_gpu),
        "invalid": list(dict.fromkeys(text for cell in cells for text in cell.invalid)),
        "departures": list(dict.fromkeys(text for cell in cells for text in cell.departures)),
        "documents": sum(len(record.answers) for cell in cells for record in cell.records),
    }


def band_of(sizes: list[float], is_reference: list[bool]) -> list[int | None]:
    """For each row the index of the reference row that holds equal bytes (the nearest one), or None.

    Parameters
    ----------
    sizes : list of float
        Realised device bytes of each row.
    is_reference : list of bool
    """
    anchors = [index for index, reference in enumerate(is_reference) if reference]
    bands: list[int | None] = []
    for size in sizes:
        near = [anchor for anchor in anchors if abs(size - sizes[anchor]) <= EQUAL_BYTES * sizes[anchor]]
        bands.append(min(near, key=lambda anchor: abs(size - sizes[anchor]), default=None))
    return bands


def _rank(rows: list[dict[str, Any]], main: Measure) -> None:
    """Rank valid rows inside their band by a measure; all others stay without a rank."""
    sign = 1 if main.higher_is_better else -1
    for row in rows:
        row |= {"main": main.name, "rank": None}
    for band in {row["band"] for row in rows if row["band"] is not None}:
        members = [row for row in rows if row["band"] == band and not row["invalid"] and main.name in row["measures"]]
        values = [sign * row["measures"][main.name]["value"] for row in members]
        for row, value in zip(members, values, strict=True):
            row["rank"] = 1 + sum(other > value for other in values)
