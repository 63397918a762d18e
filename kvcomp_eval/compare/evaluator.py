"""The process that has the model: it loads data and weights, and evaluates cells through lmms-eval."""

from __future__ import annotations

import math
import traceback
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvcomp_eval.compare.config import Cell, Config, ConfigError
from kvcomp_eval.compare.fingerprint import cell_settings, checkpoint_digest
from kvcomp_eval.compare.journal import JournalError
from kvcomp_eval.compare.machine import describe_machine
from kvcomp_eval.compare.progress import RunProgress
from kvcomp_eval.compare.record import CellRecord
from kvcomp_eval.compare.tasks import LoadedTasks, resolve_tasks, task_manager

#: What lmms-eval itself puts into a logged sample; everything else are metrics of the task.
_SAMPLE_KEYS = frozenset(
    ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "token_counts", "doc_hash", "input_media")
)


@dataclass(frozen=True)
class Preparation:
    """What is there before anything is generated.

    Parameters
    ----------
    missing : dict
        Task -> why its data cannot be loaded.
    settings : dict
        Cell key -> everything that its answers depend on; for cells whose data is there, as ``documents``.
    documents : dict
        Cell key -> how many it has.
    machine : dict
    """

    missing: dict[str, str]
    settings: dict[str, dict[str, Any]]
    documents: dict[str, int]
    machine: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: with lmms-eval's metrics, or with an error as one line and where it arose."""

    scores: dict[str, Any] | None = None
    error: str = ""
    traceback: str = ""


class Evaluator:
    """Evaluates the cells of a comparison in this process, one after the other.

    Parameters
    ----------
    config : Config

    Raises
    ------
    ConfigError
        A task is unknown.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        manager = task_manager(config)
        self.cells = config.cells(resolve_tasks(manager, [entry.task for entry in config.tasks]))
        self.tasks = LoadedTasks(manager)

    def prepare(self) -> Preparation:
        """Load data, then the model.

        Raises
        ------
        ConfigError
            The model cannot be loaded.
        """
        from kvcomp_eval.compare.model import load_model
        from kvcomp_eval.model_wrappers.loading import checkpoint_folder

        missing = self._find_data()
        try:
            self.model = load_model(self.config)
        except (OSError, ValueError, TypeError, ImportError, RuntimeError) as error:
            raise ConfigError(f"The model cannot be loaded: {error}") from error
        arguments = self.model.arguments
        folder = checkpoint_folder(arguments.pretrained, self.config.model.family)
        weights = checkpoint_digest(folder, arguments.revision)
        ready = [cell for cell in self.cells if cell.task not in missing]
        return Preparation(
            missing,
            {
                cell.key: cell_settings(self.config, cell, self.tasks.load(cell.task).dump_config(), weights)
                for cell in ready
            },
            {cell.key: self.tasks.documents(cell.task, cell.limit) for cell in ready},
            describe_machine(),
        )

    def _find_data(self) -> dict[str, str]:
        """Load the data of every task; returns what cannot be loaded, and why."""
        missing = {}
        for task in dict.fromkeys(cell.task for cell in self.cells):
            try:
                self.tasks.load(task)
            except Exception as error:
                missing[task] = reason(error)
        return missing

    def outcomes(
        self, cells: Sequence[Cell], records: dict[str, CellRecord], progress: RunProgress
    ) -> Iterator[tuple[Cell, Outcome]]:
        """Evaluate cells, in this order.

        Raises
        ------
        JournalError
            The record could not be written.
        """
        self.model.accelerator.wait_for_everyone()  # nobody writes before everybody has read
        for cell in cells:
            progress.start(cell.key)
            self.model.on_answers = partial(progress.advance, cell.key)
            yield cell, self.evaluate(cell, records[cell.key])

    def evaluate(self, cell: Cell, record: CellRecord) -> Outcome:
        """Evaluate one cell, or say why that was not possible.

        Raises
        ------
        JournalError
            The record could not be written.
        """
        try:
            return Outcome(self._simple_evaluate(cell, record))
        except JournalError:
            raise
        except Exception as error:
            return Outcome(error=reason(error), traceback=traceback.format_exc())

    def _simple_evaluate(self, cell: Cell, record: CellRecord) -> dict[str, Any]:
        """One call of lmms-eval's evaluator, as its command line would make it."""
        import torch.distributed as dist
        from lmms_eval.evaluator import simple_evaluate

        assert record.journal is not None
        self.model.record, self.model.method, self.model.failure = record, cell.row.make(cell.seed), None
        with _chatter_to(record.journal.folder / "lmms-eval.log"):
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
