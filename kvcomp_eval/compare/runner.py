"""Run a comparison: load the model once, evaluate cell after cell through lmms-eval, journal every answer."""

from __future__ import annotations

import math
import os
import traceback
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from kvcomp_eval.compare.config import Cell, Config, ConfigError
from kvcomp_eval.compare.fingerprint import cell_settings, checkpoint_digest, fingerprint
from kvcomp_eval.compare.guards import violations
from kvcomp_eval.compare.journal import Journal, JournalError, journal_files
from kvcomp_eval.compare.machine import describe_machine
from kvcomp_eval.compare.progress import RunProgress
from kvcomp_eval.compare.record import CellRecord, read_records
from kvcomp_eval.compare.tasks import LoadedTasks, resolve_tasks, task_manager

#: What lmms-eval itself puts into a logged sample; everything else are metrics of the task.
_SAMPLE_KEYS = frozenset(
    ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "token_counts", "doc_hash", "input_media")
)


class Runner:
    """One process of a run.

    Parameters
    ----------
    config : Config
    journal : Journal
        Of this process.
    rank : int
    """

    def __init__(self, config: Config, journal: Journal, rank: int = 0) -> None:
        self.config = config
        self.journal = journal
        self.rank = rank
        manager = task_manager(config)
        self.cells = config.cells(resolve_tasks(manager, [entry.task for entry in config.tasks]))
        self.tasks = LoadedTasks(manager)
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
        rank = int(os.environ.get("RANK", 0))
        with Journal(folder, f"rank{rank}" if rank else "") as journal:
            yield cls(config, journal, rank)

    def run(self, quiet: bool) -> list[str]:
        """Run every cell that the journal does not hold yet.

        Returns
        -------
        list of str
            What went wrong: failed cells and violated guards; empty after a clean run.

        Raises
        ------
        ConfigError, JournalError
            Nothing was run, or the record could not be written; what is in the journal stays.
        """
        from kvcomp_eval.compare.model import load_model
        from kvcomp_eval.model_wrappers.loading import checkpoint_folder

        self._missing = self._find_data()
        ready = [cell for cell in self.cells if cell.task not in self._missing]
        try:
            self.model = load_model(self.config)
        except (OSError, ValueError, TypeError, ImportError, RuntimeError) as error:
            raise ConfigError(f"The model cannot be loaded: {error}") from error
        arguments = self.model.arguments
        folder = checkpoint_folder(arguments.pretrained, self.config.model.family)
        self._weights = checkpoint_digest(folder, arguments.revision)
        for cell in ready:
            self._prepare_record(cell)
        if self.rank == 0:
            self.journal.append([{"kind": "run", "config": self.config.model_dump(), "machine": describe_machine()}])
        self.model.accelerator.wait_for_everyone()  # nobody writes before everybody has read
        with RunProgress(self._sizes(ready), disable=quiet) as progress:
            self.model.on_answers = progress.advance
            found = [problem for cell in ready for problem in self._run_cell(cell, progress)]
        return found + [f"{cell.key}: {self._missing[cell.task]}" for cell in self.cells if cell not in ready]

    def _find_data(self) -> dict[str, str]:
        """Load the data of every task before the model; returns what cannot be loaded, and why."""
        missing = {}
        for task in dict.fromkeys(cell.task for cell in self.cells):
            try:
                self.tasks.load(task)
            except Exception as error:
                missing[task] = reason(error)
        return missing

    def _prepare_record(self, cell: Cell) -> None:
        """Compare the cell's settings with those of the journal before anything is generated."""
        settings = cell_settings(self.config, cell, self.tasks.load(cell.task).dump_config(), self._weights)
        record = self.records.setdefault(cell.key, CellRecord(cell.key))
        record.journal, record.guards = self.journal, self.config.guards
        record.start(cell, fingerprint(settings), settings)

    def _sizes(self, cells: list[Cell]) -> dict[str, tuple[int, int]]:
        """Cell -> documents, and how many of them are answered already."""
        return {
            cell.key: (self.tasks.documents(cell.task, cell.limit), len(self.records[cell.key].answers))
            for cell in cells
        }

    def _run_cell(self, cell: Cell, progress: RunProgress) -> list[str]:
        record = self.records[cell.key]
        progress.start(cell.key)
        if record.scores is None:
            try:
                scores = self._evaluate(cell, record)
            except JournalError:
                raise
            except Exception as error:
                message = reason(error)
                record.fail(message)
                progress.finish(cell.key, f"failed: {message}")
                progress.log(traceback.format_exc())
                return [f"{cell.key}: {message}"]
            if self.rank == 0:
                record.finish({**scores, "invalid": self._violations(cell)})
            else:
                record.scores = {}
        problems = (record.scores or {}).get("invalid", [])
        progress.finish(cell.key, "; ".join(f"INVALID, {problem}" for problem in problems))
        return [f"{cell.key}: INVALID, {problem}" for problem in problems]

    def _violations(self, cell: Cell) -> list[str]:
        """Check the guards on the answers of all processes."""
        records = self.records
        if self.model.world_size > 1:
            records = read_records(journal_files(self.journal.folder))
        full = None if cell.row.method == "full" else records.get(self._full_key(cell))
        return violations(records[cell.key], cell.row, full, self.config.guards)

    def _full_key(self, cell: Cell) -> str:
        return Cell(self.config.rows()[0], cell.task, cell.limit, cell.seed).key

    def _evaluate(self, cell: Cell, record: CellRecord) -> dict[str, Any]:
        """One call of lmms-eval's evaluator, as its command line would make it."""
        import torch.distributed as dist
        from lmms_eval.evaluator import simple_evaluate

        self.model.record, self.model.method, self.model.failure = record, cell.row.make(cell.seed), None
        with _chatter_to(self.journal.folder / "lmms-eval.log"):
            results = simple_evaluate(
                model=self.model,
                tasks=[cell.task],
                task_manager=self.tasks,
                limit=cell.limit,
                log_samples=True,
                batch_size=self.config.batch_size,
                random_seed=cell.seed,
                numpy_random_seed=cell.seed,
                torch_random_seed=cell.seed,
                fewshot_random_seed=cell.seed,
                bootstrap_iters=0,
                verbosity="WARNING",
                cli_args=_cli_defaults(),
                distributed_executor_backend="torchrun"
                if dist.is_available() and dist.is_initialized()
                else "accelerate",
            )
        _raise_first(self.model.failure)
        return _scores(results, cell.task) if results is not None else {}


def reason(error: BaseException) -> str:
    """The error that lmms-eval's retries wrap, as one line."""
    attempt = getattr(error, "last_attempt", None)
    if attempt is not None and attempt.exception() is not None:
        return reason(attempt.exception())
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def _chatter_to(path: Path) -> Iterator[None]:
    """Send lmms-eval's own progress bars to a file, or they would draw over ours."""
    with path.open("a", encoding="utf-8") as file, redirect_stderr(file):
        yield


def _cli_defaults() -> Namespace:
    """What lmms-eval's command line would say about scoring: thoughts are cut from answers, documents come bare."""
    tags = '[["<think>", "</think>"], ["<analysis>", "</analysis>"]]'
    return Namespace(process_with_media=False, reasoning_tags=tags, agentic_trace_mode="basic")


def _raise_first(failure: Exception | None) -> None:
    """Raise on every process if one of them failed."""
    import torch.distributed as dist

    failures = [failure]
    if dist.is_available() and dist.is_initialized():
        failures = [None] * dist.get_world_size()
        dist.all_gather_object(failures, None if failure is None else RuntimeError(str(failure)))
    for found in failures:
        if found is not None:
            raise found


def _scores(results: dict[str, Any], task: str) -> dict[str, Any]:
    """Aggregated metrics as lmms-eval names them, and the metrics of every document."""
    documents = {
        str(sample["doc_id"]): {
            "metrics": {name: float(value) for name, value in sample.items() if _is_metric(name, value)},
            "target": str(sample["target"]),
        }
        for sample in results["samples"][task]
    }
    higher = {name: bool(value) for name, value in results["higher_is_better"].get(task, {}).items()}
    values = {name: value for name, value in results["results"][task].items() if "," in name and "stderr" not in name}
    return {
        "aggregated": {name: float(value) for name, value in values.items() if _is_number(value)},
        "not_computed": {name.partition(",")[0]: str(value) for name, value in values.items() if not _is_number(value)},
        "higher_is_better": higher,
        "documents": documents,
    }


def _is_metric(name: str, value: Any) -> bool:
    return name not in _SAMPLE_KEYS and _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
