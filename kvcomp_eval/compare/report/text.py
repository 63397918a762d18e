"""A report as terminal tables, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from kvcomp_eval.compare.report.answer import answers
from kvcomp_eval.compare.report.tables import (
    Table,
    cost_table,
    fidelity_table,
    short_summary,
    summary_table,
    task_table,
)

#: Characters of the whole summary.
_WIDE = 160
_STYLES = {"invalid": "red", "unranked": "dim", "full": "bold", "ranked": ""}


def print_report(results: dict[str, Any], console: Console) -> None:
    """Print the answer, the summary, and what went wrong."""
    board = results["leaderboard"]
    if not console.is_terminal:  # a file or pipe has no width to fit into
        console = Console(file=console.file, width=_WIDE)
    is_wide = console.width >= _WIDE
    _print(summary_table(board) if is_wide else short_summary(board), console)
    if is_wide:
        _print(fidelity_table(board), console)
    for text in answers(board):
        console.print(f"- {text}", markup=False, highlight=False)
    for key, error in results["failed"].items():
        console.print(f"[red]failed[/red] {escape(key)}: {escape(error)}")
    for key in results["unfinished"]:
        console.print(f"[red]unfinished[/red] {escape(key)}")


def markdown(results: dict[str, Any]) -> str:
    """The whole report in GitHub's Markdown."""
    board = results["leaderboard"]
    parts = [f"# {results['config']['name']}", results["config"]["description"]]
    parts += [f"- {text}" for text in answers(board)]
    per_task = [task_table(board, task) for task in board["tasks"]]
    tables = [summary_table(board), fidelity_table(board), *per_task, cost_table(board)]
    for table in tables:
        parts += [f"## {table.title}", markdown_table(table), table.legend]
    if results["failed"]:
        parts += ["## Failed cells", *(f"- {key}: {error}" for key, error in results["failed"].items())]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(table: Table) -> str:
    """One table; invalid rows carry their reason."""
    lines = [table.columns, ["---"] * len(table.columns)]
    lines += [[*line.cells[:-1], line.cells[-1] + (f" ({line.note})" if line.note else "")] for line in table.lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def comma_separated(results: dict[str, Any]) -> str:
    """Every measure of every row, one per line."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    head = ["scope", "method", "budget", "device_bytes", "ratio", "rank", "invalid", "measure", "value", "low", "high"]
    tail = ["vs_full", "vs_reference", "p_holm", "group", "documents", "clusters"]
    writer.writerow(head + tail)
    board = results["leaderboard"]
    for scope, rows in [("all", board["summary"]), *board["tasks"].items()]:
        for row in rows:
            for name, measure in row["measures"].items():
                compared = measure.get("vs_reference", {})
                start = [scope, row["label"], row["budget"], row["costs"]["device_bytes"], row["costs"]["ratio"]]
                middle = [row["rank"], "; ".join(row["invalid"]), name, measure["value"]]
                found = [measure["low"], measure["high"], measure.get("vs_full", {}).get("value")]
                end = [compared.get("value"), compared.get("p_holm"), measure.get("group")]
                writer.writerow(start + middle + found + end + [measure["documents"], measure["clusters"]])
    return file.getvalue()


def _print(table: Table, console: Console) -> None:
    shown = RichTable(title=table.title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, column in enumerate(table.columns):
        shown.add_column(column, justify="left" if index == 0 else "right")
    for line in table.lines:
        shown.add_row(*(escape(cell) for cell in line.cells), style=_STYLES[line.kind])
    console.print(shown)
    console.print(table.legend, style="dim", markup=False, highlight=False)
    for line in table.lines:
        if line.note:
            mark = "[red]INVALID[/red] " if line.kind == "invalid" else ""
            console.print(f"{mark}{escape(' '.join(line.cells[:2]))}: {escape(line.note)}")
