"""What the methods did, where a run was traced: drift over the steps, classes and entries of the heads."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from kvcomp_eval.analysis import drift
from kvcomp_eval.compare.record import CellRecord
from kvcomp_eval.compare.report.tables import Line, Table, number
from kvcomp_eval.compare.results import Run

#: Heads whose mean entries differ by less than this share hold equally many.
EQUAL_ENTRIES = 0.05


def behaviour(run: Run) -> dict[str, dict[str, Any]]:
    """Figures of every traced row, over all its tasks and seeds; JSON-able.

    Returns
    -------
    dict
        ``drift``: row name -> ``answers`` traced, means, and ``steps``, the columns of
        :func:`~kvcomp_eval.analysis.drift.by_step`. ``heads``: row name -> ``answers``, and mean of ``static``,
        ``sparsity``, ``drift`` and ``entries`` [L][Hkv] (``entries`` as share of the prompt). Rows with nothing to
        tell are left out, such as those that give every head the same.
    """
    rows: dict[str, list[CellRecord]] = {}
    for record in run.complete():
        assert record.cell is not None
        rows.setdefault(record.cell.row.name, []).append(record)
    found = {
        "drift": {name: _drift(records) for name, records in rows.items()},
        "heads": {name: _heads(records) for name, records in rows.items()},
    }
    return {kind: {name: facts for name, facts in by_row.items() if facts} for kind, by_row in found.items()}


def _drift(records: list[CellRecord]) -> dict[str, Any]:
    frames = [drift.load(path) for record in records for path in record.traces if path.is_file()]
    if not frames:
        return {}
    # Prompts are numbered within a file.
    frame = pd.concat([each.assign(prompt=each["prompt"] + (i << 32)) for i, each in enumerate(frames)])
    steps = drift.by_step(frame).reset_index()
    method = (records[0].settings or {}).get("method", {})
    return {
        "answers": int(frame["prompt"].nunique()),
        "drift": float(frame["drift"].mean()),
        "rate": float(frame["refreshed"].mean()),
        "target": method.get("rho") if method.get("gain") else None,
        "overlap": float(frame["overlap"].mean()),
        "steps": {str(name): steps[name].round(6).tolist() for name in steps},
    }


def _heads(records: list[CellRecord]) -> dict[str, Any]:
    answers = [answer for record in records for answer in record.answers.values() if "heads" in answer]
    if not answers:
        return {}
    shape = np.shape(answers[0]["heads"]["entries"])
    shares = np.mean([np.array(answer["heads"]["entries"]) / answer["input_tokens"] for answer in answers], axis=0)
    found = {} if np.ptp(shares) <= EQUAL_ENTRIES * shares.mean() else {"entries": shares}
    for name in ("static", "sparsity", "drift"):
        if name in answers[0]["heads"]:
            found[name] = np.mean([answer["heads"][name] for answer in answers], axis=0).reshape(shape)
    facts = {name: values.round(6).tolist() for name, values in found.items()}
    return {"answers": len(answers), **facts} if facts else {}


def behaviour_tables(found: dict[str, dict[str, Any]]) -> list[Table]:
    """One line per traced row; none if there are none."""
    tables = []
    if found["drift"]:
        columns = ["method", "answers", "drift", "refreshed", "target", "selection kept"]
        lines = [
            Line(
                [name, str(row["answers"]), *(number(row[key], 3) for key in ("drift", "rate", "target", "overlap"))],
                "ranked",
            )
            for name, row in found["drift"].items()
        ]
        legend = (
            "Means over all steps and layers of the traced answers. Drift: share of a step's attention that falls on "
            "evicted prompt tokens. Refreshed: share of layer-steps that selected anew; target: what the controller "
            "was given. Selection kept: share of the selection that a step left in place."
        )
        tables.append(Table("Drift", columns, lines, legend))
    if found["heads"]:
        columns = ["method", "answers", "heads", "static", "sparsity", "least entries", "most entries"]
        lines = [Line([name, *_head_cells(row)], "ranked") for name, row in found["heads"].items()]
        legend = (
            "Means over the answers. Static: share of heads that never retrieve. Sparsity: share of its attention that "
            "a head puts on its top entries, from least to most of any head. Entries: share of the prompt that the "
            "poorest and the richest head hold."
        )
        tables.append(Table("Heads", columns, lines, legend))
    return tables


def _head_cells(row: dict[str, Any]) -> list[str]:
    values = {name: np.array(row[name]) for name in ("static", "sparsity", "entries") if name in row}
    static = number(float(values["static"].mean()), 2) if "static" in values else number(None, 2)
    low, high = ({name: float(of(found)) for name, found in values.items()} for of in (np.min, np.max))
    sparsity = f"{low['sparsity']:.3f} to {high['sparsity']:.3f}" if "sparsity" in values else number(None, 3)
    entries = [f"{100 * end['entries']:.1f} %" if "entries" in end else "equal" for end in (low, high)]
    return [str(row["answers"]), str(next(iter(values.values())).size), static, sparsity, *entries]


def behaviour_csv(found: dict[str, dict[str, Any]]) -> str:
    """Every number of the plots, one per line."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["method", "measure", "step", "layer", "kv_head", "value"])
    writer.writerows(_numbers(found))
    return file.getvalue()


def _numbers(found: dict[str, dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for name, row in found["drift"].items():
        columns = dict(row["steps"])
        steps = columns.pop("step")
        for measure, values in columns.items():
            yield from ((name, measure, step, "", "", value) for step, value in zip(steps, values, strict=True))
    for name, row in found["heads"].items():
        for measure in ("static", "sparsity", "drift", "entries"):
            for layer, values in enumerate(row.get(measure, [])):
                yield from ((name, measure, "", layer, head, value) for head, value in enumerate(values))
