"""A comparison over several machines: Ray's workers evaluate whole cells, this process alone writes the journal."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

from rich.console import Console

from kvcomp_eval.compare.config import FULL, Cell, Config, ConfigError
from kvcomp_eval.compare.evaluator import Outcome, Preparation, reason
from kvcomp_eval.compare.fingerprint import differences
from kvcomp_eval.compare.journal import JournalError
from kvcomp_eval.compare.progress import RunProgress
from kvcomp_eval.compare.ray_worker import Message, Worker
from kvcomp_eval.compare.record import CellRecord

#: A cell and how it ended.
Ended = tuple[Cell, Outcome]


class RayWorkers:
    """Workers on the cluster that ``ray.init()`` finds (``RAY_ADDRESS``, one on this machine), else on one of its own.

    Each holds the model. Where the cluster has GPUs every worker takes one, otherwise they share its processors.

    Parameters
    ----------
    config : Config
    count : int, optional
        How many; default: one per GPU, without GPUs one per machine.
    quiet : bool

    Raises
    ------
    ConfigError
        Ray is not installed or cannot start, or there are processes beside this one.
    """

    def __init__(self, config: Config, count: int | None = None, quiet: bool = True) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise ConfigError("--ray needs Ray, which is not installed: pip install 'kvcomp-eval[ray]'.") from None
        if "WORLD_SIZE" in os.environ:
            raise ConfigError("--ray starts processes of its own; run it without torchrun or accelerate.")
        self._ray = ray
        self._config = config
        self._count = count
        self._console = Console(stderr=True, quiet=quiet)
        self._workers: list[Any] = []

    def __enter__(self) -> RayWorkers:
        try:
            self._ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises plain ones
            self._ray.shutdown()
            raise ConfigError(f"Ray cannot start: {reason(error)}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def prepare(self) -> Preparation:
        """Start the workers, which load data and model; data that one of them lacks is missing.

        Raises
        ------
        ConfigError
            The cluster is too small, or a worker cannot start or would give other answers than the others.
        """
        count, share = shares([node["Resources"] for node in self._ray.nodes() if node["Alive"]], self._count)
        asked = ", ".join(f"{name}={amount}" for name, amount in share.items())
        self._console.print(f"Waiting for {count} Ray workers, each with {asked}.", highlight=False)
        actor = self._ray.remote(Worker).options(scheduling_strategy="SPREAD", **share)
        self._workers = [actor.remote(self._config) for _ in range(count)]
        try:
            return agreed(self._ray.get([worker.prepare.remote() for worker in self._workers]))
        except ConfigError as error:  # of a worker, wrapped: without its traceback
            raise ConfigError(str(getattr(error, "cause", error))) from None
        except self._ray.exceptions.RayError as error:
            raise ConfigError(f"A worker cannot start: {reason(error)}") from error

    def outcomes(self, cells: Sequence[Cell], records: dict[str, CellRecord], progress: RunProgress) -> Iterator[Ended]:
        """Hand out cells in this order; a worker that dies fails its cell, and the others go on."""
        return after_full(cells, self._as_they_end(cells, records, progress))

    def _as_they_end(
        self, cells: Sequence[Cell], records: dict[str, CellRecord], progress: RunProgress
    ) -> Iterator[Ended]:
        waiting = deque(cells)
        running: dict[Any, tuple[Any, Cell]] = {}

        def start(worker: Any) -> None:
            if waiting:
                cell = waiting.popleft()
                progress.start(cell.key)
                running[worker.start.remote(cell, replace(records[cell.key], journal=None))] = worker, cell

        for worker in self._workers:
            start(worker)
        while running:
            (first,), _ = self._ray.wait(list(running))
            worker, cell = running.pop(first)
            try:
                message: Message = self._ray.get(first)
            except self._ray.exceptions.RayError as error:
                summary = str(error).partition("\n")[0]
                yield cell, Outcome(error=f"the worker is lost: {summary}", traceback=str(error))
                continue
            if message.outcome is None:
                written = write(message, records[cell.key], progress)
                running[worker.proceed.remote(written)] = worker, cell
                continue
            start(worker)
            yield cell, message.outcome
        for cell in waiting:
            progress.start(cell.key)
            yield cell, Outcome(error="no worker is left to evaluate it")


def write(message: Message, record: CellRecord, progress: RunProgress) -> JournalError | None:
    """Write what a worker sent; returns what to answer it.

    A journal that failed once takes nothing more, so the run ends when the end of the worker's cell is written.
    """
    try:
        record.take(message.lines, message.files)
    except JournalError as error:
        return error
    answers = [line for line in message.lines if line["kind"] == "answer"]
    if answers:
        progress.advance(record.key, len(answers), sum(len(line["tokens"]) for line in answers))
    return None


def after_full(cells: Iterable[Cell], ended: Iterable[Ended]) -> Iterator[Ended]:
    """Hold back cells until the uncompressed one that they are compared with has ended."""
    awaited = {(cell.task, cell.seed) for cell in cells if cell.row.method == FULL}
    held: list[Ended] = []
    for cell, outcome in ended:
        if cell.row.method == FULL:
            awaited.remove((cell.task, cell.seed))
        held.insert(0, (cell, outcome))
        free = [(cell.task, cell.seed) not in awaited for cell, _ in held]
        yield from compress(held, free)
        held = [pair for pair, is_free in zip(held, free, strict=True) if not is_free]


def shares(machines: Sequence[dict[str, float]], wanted: int | None) -> tuple[int, dict[str, int]]:
    """How many workers, and what each of them takes.

    Parameters
    ----------
    machines : sequence of dict
        Ray's resources of each: ``CPU``, ``GPU``.
    wanted : int, optional

    Raises
    ------
    ConfigError
        The cluster has no place for so many.
    """
    cpus, gpus = ([int(machine.get(kind, 0)) for machine in machines] for kind in ("CPU", "GPU"))
    most, kind = (sum(gpus), "GPUs") if any(gpus) else (sum(cpus), "processors")
    count = wanted or (most if any(gpus) else max(1, sum(map(bool, cpus))))
    if not 1 <= count <= most:
        raise ConfigError(f"--workers {count} does not fit: the cluster has {most} {kind}; use 1 to {most}.")
    if any(gpus):
        return count, {"num_gpus": 1, "num_cpus": min(cpu // gpu for cpu, gpu in zip(cpus, gpus, strict=True) if gpu)}
    fitting = (share for share in range(max(cpus), 0, -1) if sum(cpu // share for cpu in cpus) >= count)
    return count, {"num_cpus": next(fitting)}


def agreed(found: Sequence[Preparation]) -> Preparation:
    """What workers found, as one; their machines are listed where they differ.

    Raises
    ------
    ConfigError
        Two of them would give different answers.
    """
    first, *others = found
    for other in others:
        both = sorted(first.settings.keys() & other.settings.keys())
        changed = [text for key in both for text in differences(first.settings[key], other.settings[key])]
        if changed:
            raise ConfigError(
                f"Two workers would give different answers: {'; '.join(dict.fromkeys(changed))}. Give all machines the "
                "same versions, checkpoint (with its times, if it is a copied folder) and data."
            )
    missing = {task: why for each in reversed(found) for task, why in each.missing.items()}
    machine = {**first.machine, "workers": len(found)}
    if different := [other.machine for other in others if other.machine != first.machine]:
        machine["other_machines"] = different
    return replace(first, missing=missing, machine=machine)
