"""``kvcomp-eval check``: the regression gate."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from kvcomp_eval.compare.exits import BAD, OK, UNUSABLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("config", help="YAML file, or the name of a shipped configuration (ci)")
    parser.add_argument("--baseline", type=Path, required=True, help="file that `kvcomp-eval baseline` wrote")
    parser.add_argument("--margin", type=float, default=0.05, help="loss that is tolerated; default: %(default)s")
    parser.add_argument("--alpha", type=float, default=0.05, help="one-sided error rate; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap; default: %(default)s")
    parser.add_argument("--limit", type=int, help="documents per task, instead of the configuration's")
    parser.add_argument("--folder", type=Path, help="folder of the run, kept and resumed; default: a temporary one")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the verdicts as JUnit XML")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="append a Markdown summary")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(options: argparse.Namespace) -> int:
    """0: nothing is worse; 1: something is, or cannot be shown not to be; 2: nothing could be compared."""
    from kvcomp_eval.compare.config import ConfigError
    from kvcomp_eval.compare.gate_report import junit
    from kvcomp_eval.compare.journal import JournalError

    try:
        return _run(options)
    except (ConfigError, JournalError, OSError) as error:
        print(error, file=sys.stderr)
        if options.junit:
            options.junit.write_text(junit([], str(options.config), str(error)), encoding="utf-8")
        return UNUSABLE


def _run(options: argparse.Namespace) -> int:
    from kvcomp_eval.compare.config import ConfigError
    from kvcomp_eval.compare.fresh import run_fresh
    from kvcomp_eval.compare.gate import compare, read_baseline
    from kvcomp_eval.compare.gate_report import junit, markdown, print_verdicts

    if options.margin < 0 or not 0 < options.alpha < 0.5:
        raise ConfigError(f"--margin {options.margin} must be at least 0, and --alpha {options.alpha} in (0, 0.5).")
    baseline = read_baseline(options.baseline)
    finished, problems = run_fresh(options.config, options.limit, options.folder, options.quiet)
    for problem in problems:
        print(problem, file=sys.stderr)
    verdicts = compare(baseline, finished, options.margin, options.alpha, options.seed)
    print_verdicts(verdicts, options.margin, Console())
    name = finished.config.name
    if options.junit:
        options.junit.write_text(junit(verdicts, name), encoding="utf-8")
    if options.summary:
        with options.summary.open("a", encoding="utf-8") as file:
            file.write(markdown(verdicts, options.margin, name))
    return BAD if any(verdict.is_failure for verdict in verdicts) else OK
