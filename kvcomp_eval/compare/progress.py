"""What a person sees while a comparison runs: cells, samples, tokens per second, time left."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@dataclass
class _Running:
    """A cell that is being evaluated: its bar, when it began, tokens made since."""

    bar: TaskID
    started: float
    tokens: int = 0


class RunProgress:
    """On a terminal one bar for the run and one for each running cell; one line per finished cell elsewhere.

    Parameters
    ----------
    sizes : dict
        Cell -> documents, and how many of them are answered already.
    disable : bool
    console : Console, optional
    """

    def __init__(
        self, sizes: dict[str, tuple[int, int]], disable: bool = False, console: Console | None = None
    ) -> None:
        self._sizes = sizes
        self._console = console or Console(file=sys.stderr, quiet=disable)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=disable or not self._console.is_terminal,
        )
        self._finished = 0
        self._running: dict[str, _Running] = {}

    def __enter__(self) -> RunProgress:
        self._bars.start()
        documents, done = (sum(column) for column in zip((0, 0), *self._sizes.values(), strict=True))
        self._all = self._bars.add_task(f"{len(self._sizes)} cells", total=documents, completed=done, note="")
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, cell: str) -> None:
        """A cell begins."""
        total, done = self._sizes[cell]
        bar = self._bars.add_task(cell, total=total, completed=done, note="")
        self._running[cell] = _Running(bar, time.perf_counter())

    def advance(self, cell: str, answers: int, tokens: int) -> None:
        """A batch was answered."""
        running = self._running[cell]
        running.tokens += tokens
        rate = f"{running.tokens / (time.perf_counter() - running.started):.0f} tokens/s"
        self._bars.advance(self._all, answers)
        self._bars.update(running.bar, advance=answers, note=rate)

    def finish(self, cell: str, problem: str = "", remark: str = "") -> None:
        """A cell ended; one that had ended before was never started."""
        self._finished += 1
        self._bars.update(self._all, description=f"{self._finished} of {len(self._sizes)} cells")
        state = f"[red]{_escape(problem)}[/red]" if problem else "done"
        remarks = [_escape(remark)] if remark else []
        if cell in self._running:
            running = self._running.pop(cell)
            self._bars.remove_task(running.bar)
            remarks.append(f"{time.perf_counter() - running.started:.1f} s")
        self._console.print(", ".join([f"{self._finished}/{len(self._sizes)} {_escape(cell)}: {state}", *remarks]))

    def log(self, text: str) -> None:
        """Print below the bars."""
        self._console.print(text, markup=False, highlight=False)


def _escape(text: Any) -> str:
    return str(text).replace("[", r"\[")
