"""``kvcomp-eval compare``."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from kvcomp_eval.compare.exits import BAD, OK, UNUSABLE

if TYPE_CHECKING:
    from kvcomp_eval.compare.config import Config
    from kvcomp_eval.compare.runner import Engine

RUNS = Path("kvcomp-runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("config", help="YAML file, or the name of a shipped configuration (demo, ci, ...)")
    parser.add_argument(
        "--output", type=Path, help="folder of the run; default: kvcomp-runs/<name>; resumed if it exists"
    )
    parser.add_argument("--limit", type=int, help="documents per task, instead of the configuration's")
    parser.add_argument("--dry-run", action="store_true", help="print cells, sizes and estimates, and stop")
    parser.add_argument("--ray", action="store_true", help="spread the cells over the machines of a Ray cluster")
    parser.add_argument("--workers", type=int, help="with --ray: how many; default: one per GPU, else per machine")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(options: argparse.Namespace) -> int:
    """Run the grid, then print and write the report."""
    from kvcomp_eval.compare.config import ConfigError
    from kvcomp_eval.compare.journal import JournalError

    try:
        return _run(options)
    except (ConfigError, JournalError) as error:
        print(error, file=sys.stderr)
        return UNUSABLE


def _run(options: argparse.Namespace) -> int:
    from kvcomp_eval.compare.config import ConfigError, load_config, with_limit

    config = with_limit(load_config(options.config), options.limit)
    if options.workers is not None and not (options.ray and options.workers > 0):
        raise ConfigError(f"--workers {options.workers} needs --ray and must be at least 1.")
    if options.dry_run:
        from kvcomp_eval.compare.estimate import print_plan
        from kvcomp_eval.compare.tasks import resolve_tasks, task_manager

        leaves = resolve_tasks(task_manager(config), [entry.task for entry in config.tasks])
        print_plan(config, config.cells(leaves), Console())
        return OK
    from kvcomp_eval.compare.logs import quiet_lmms_eval
    from kvcomp_eval.compare.report.command import write_report
    from kvcomp_eval.compare.runner import Runner

    quiet_lmms_eval()
    folder = options.output or RUNS / config.name
    with Runner.in_folder(config, folder) as runner:
        with _engine(config, options) as engine:
            problems = runner.run(options.quiet, engine)
        if runner.rank > 0:
            return OK
        write_report([folder], folder, Console(), runner.tasks.load)
    for problem in problems:
        print(problem, file=sys.stderr)
    return BAD if problems else OK


def _engine(config: Config, options: argparse.Namespace) -> AbstractContextManager[Engine | None]:
    """Where cells are evaluated; None: in this process."""
    if not options.ray:
        return nullcontext()
    from kvcomp_eval.compare.ray_workers import RayWorkers

    return RayWorkers(config, options.workers, options.quiet)
