"""What a person sees while a comparison runs: cells, samples, tokens per second, time left."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class RunProgress:
    """Two bars on a terminal, one line per finished cell elsewhere.

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
        self._tokens = 0

    def __enter__(self) -> RunProgress:
        self._bars.start()
        documents, done = (sum(column) for column in zip(*self._sizes.values(), strict=True))
        self._all = self._bars.add_task(f"{len(self._sizes)} cells", total=documents, completed=done, note="")
        self._cell = self._bars.add_task("", total=1, note="")
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, cell: str) -> None:
        """A cell begins."""
        total, done = self._sizes[cell]
        self._started, self._tokens = time.perf_counter(), 0
        self._bars.reset(self._cell, total=total, completed=done, description=cell, note="")

    def advance(self, answers: int, tokens: int) -> None:
        """A batch was answered."""
        self._tokens += tokens
        rate = f"{self._tokens / (time.perf_counter() - self._started):.0f} tokens/s"
        self._bars.advance(self._all, answers)
        self._bars.update(self._cell, advance=answers, note=rate)

    def finish(self, cell: str, problem: str = "") -> None:
        """A cell ended."""
        self._finished += 1
        self._bars.update(self._all, description=f"{self._finished} of {len(self._sizes)} cells")
        seconds = time.perf_counter() - self._started
        state = f"[red]{_escape(problem)}[/red]" if problem else "done"
        self._console.print(f"{self._finished}/{len(self._sizes)} {_escape(cell)}: {state}, {seconds:.1f} s")

    def log(self, text: str) -> None:
        """Print below the bars."""
        self._console.print(text, markup=False, highlight=False)


def _escape(text: Any) -> str:
    return str(text).replace("[", r"\[")
