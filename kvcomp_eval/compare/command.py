"""``kvcomp-eval compare``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from kvcomp_eval.compare.exits import BAD, OK, UNUSABLE

RUNS = Path("kvcomp-runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("config", help="YAML file, or the name of a shipped configuration (demo, ci, ...)")
    parser.add_argument(
        "--output", type=Path, help="folder of the run; default: kvcomp-runs/<name>; resumed if it exists"
    )
    parser.add_argument("--limit", type=int, help="documents per task, instead of the configuration's")
    parser.add_argument("--dry-run", action="store_true", help="print cells, sizes and estimates, and stop")
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
    from kvcomp_eval.compare.config import load_config, with_limit

    config = with_limit(load_config(options.config), options.limit)
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
        problems = runner.run(options.quiet)
        if runner.rank > 0:
            return OK
        write_report([folder], folder, Console(), runner.tasks.load)
    for problem in problems:
        print(problem, file=sys.stderr)
    return BAD if problems else OK
