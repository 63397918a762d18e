"""``kvcomp-eval report``: read runs, print tables, write Markdown, CSV, JSON and the page."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from kvcomp_eval.compare.exits import OK, UNUSABLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a `kvcomp-eval compare` run")
    parser.add_argument("--output", type=Path, help="folder for the files; default: the first run's")


def run(options: argparse.Namespace) -> int:
    """Print and write the report."""
    from kvcomp_eval.compare.config import ConfigError
    from kvcomp_eval.compare.journal import JournalError
    from kvcomp_eval.compare.logs import quiet_lmms_eval

    quiet_lmms_eval()
    try:
        write_report(options.runs, options.output or options.runs[0], Console())
    except (ConfigError, JournalError) as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    return OK


def write_report(
    folders: Sequence[Path], output: Path, console: Console, load_task: Callable[[str], Any] | None = None
) -> dict[str, Any]:
    """Write ``results.json``, ``report.md``, ``report.csv`` and ``report.html``, and print the summary.

    A traced run also gives ``behaviour.csv``.

    Parameters
    ----------
    folders : sequence of Path
        Runs; several are shown as one.
    output : Path
    console : Console
    load_task : callable, optional
        Task name -> loaded task, for the images of the worst samples; default: loaded anew.

    Returns
    -------
    dict
        The content of ``results.json``.
    """
    from kvcomp_eval.compare.journal import JournalError
    from kvcomp_eval.compare.leaderboard import leaderboard
    from kvcomp_eval.compare.report.behaviour import behaviour, behaviour_csv
    from kvcomp_eval.compare.report.page import page
    from kvcomp_eval.compare.report.samples import shown_by_tasks, worst_samples
    from kvcomp_eval.compare.report.text import comma_separated, markdown, print_report
    from kvcomp_eval.compare.results import merge_runs, read_run
    from kvcomp_eval.compare.tasks import LoadedTasks, task_manager

    run = merge_runs([read_run(folder) for folder in folders])
    board, traced = leaderboard(run), behaviour(run)
    results = {
        "config": run.config.model_dump(),
        "machine": run.machine,
        "leaderboard": board,
        "behaviour": traced,
        "failed": run.failed(),
        "unfinished": run.unfinished(),
        "fingerprints": {key: record.fingerprint for key, record in run.records.items()},
    }
    shown = shown_by_tasks(load_task or LoadedTasks(task_manager(run.config)).load)
    files = {
        "results.json": json.dumps(results, indent=1, ensure_ascii=False),
        "report.md": markdown(results),
        "report.csv": comma_separated(results),
        "report.html": page(results, worst_samples(run, shown)),
    }
    if any(traced.values()):
        files["behaviour.csv"] = behaviour_csv(traced)
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (output / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise JournalError(f"{output} cannot be written ({error.strerror}); use --output FOLDER.") from error
    print_report(results, console)
    console.print(f"Written to {output}: {', '.join(files)}", highlight=False)
    return results
