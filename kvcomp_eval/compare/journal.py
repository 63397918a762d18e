"""The record of a run: append-only JSON lines, one per answer, that survive a kill at any moment.

Kinds of lines:

``cell``    a cell starts: key, fingerprint, settings
``answer``  one answer: cell, task, doc id, text, tokens, figures
``trace``   a file of the method's steps during some of the answers is complete
``guard``   one answer that a guard asked for again
``scores``  a cell is complete: lmms-eval's metrics, per document and aggregated
``failed``  a cell ended with an error
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

NAME = "journal"


class JournalError(RuntimeError):
    """The record cannot be read or written; what was written before stays."""


class LineWriter(Protocol):
    """Where a record writes its lines: a file, or the process that has it."""

    folder: Path

    def append(self, lines: Iterable[dict[str, Any]]) -> None:
        """Return once the lines are safe; raises JournalError."""
        ...


def journal_files(folder: Path) -> list[Path]:
    """All journal files of a run: that of the first process, then those of the others."""
    return sorted(folder.glob(f"{NAME}*.jsonl"), key=lambda path: (path.name != f"{NAME}.jsonl", path.name))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a file's complete lines; a torn last line, left by a kill, is skipped.

    Raises
    ------
    JournalError
        A line in the middle is damaged.
    """
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            yield json.loads(line)
        except ValueError:
            if number == len(lines) - 1:
                return
            raise JournalError(f"{path}, line {number} is damaged; restore the file or use another folder.") from None


class Journal:
    """One process's journal file, opened for appending.

    Parameters
    ----------
    folder : Path
        The run's folder; it is made if needed.
    process : str
        Empty for the first process; others write to a file of their own.
    """

    def __init__(self, folder: Path, process: str = "") -> None:
        self.folder = folder
        self.path = folder / (f"{NAME}.{process}.jsonl" if process else f"{NAME}.jsonl")
        self._lock = FileLock(folder / f".{self.path.name}.lock")
        self._file: FileIO | None = None
        self._failure: JournalError | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            self.recovered = _cut_torn_line(self.path)
            self._file = self.path.open("ab", buffering=0)  # what a full disk refuses must not be tried again
        except Timeout:
            raise JournalError(f"Another process is writing to {folder}; wait for it, or use --output.") from None
        except OSError as error:
            raise JournalError(f"{folder} cannot be written ({error.strerror}); use --output FOLDER.") from error

    def append(self, lines: Iterable[dict[str, Any]]) -> None:
        """Write a batch of lines and force it to the disk; after a failure nothing more is taken.

        A line that was cut short must stay the last one, or it could not be told from damage.
        """
        assert self._file is not None
        if self._failure is not None:
            raise self._failure
        text = memoryview("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
        try:
            while text:
                text = text[self._file.write(text) :]
            if self.path.is_file():  # a pipe or device cannot be synchronised
                os.fsync(self._file.fileno())
        except OSError as error:
            self._failure = JournalError(
                f"{self.path} could not be written ({error.strerror}). Answers written before are safe: "
                "make room and run the same command again to go on."
            )
            raise self._failure from error

    def close(self) -> None:
        """Close the file and let other processes write."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._lock.release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cut_torn_line(path: Path) -> bool:
    """Remove what a kill left of the last line; True if there was something."""
    if not path.is_file():
        return False
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    last = data[data.rfind(b"\n", 0, max(0, end - 1)) + 1 : end]
    if last and not _is_json(last):
        end -= len(last)
    if end == len(data):
        return False
    with path.open("r+b") as file:
        file.truncate(end)
    return True


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
