"""``kvcomp-eval baseline``: record what later changes are compared with."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from kvcomp_eval.compare.exits import OK, UNUSABLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("config", help="YAML file, or the name of a shipped configuration (ci)")
    parser.add_argument(
        "--output", type=Path, default=Path("baseline.json"), help="file to write; default: %(default)s"
    )
    parser.add_argument("--limit", type=int, help="documents per task, instead of the configuration's")
    parser.add_argument("--folder", type=Path, help="folder of the run, kept and resumed; default: a temporary one")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(options: argparse.Namespace) -> int:
    """Run the configuration and write its scores; refused if a cell fails or a guard is violated."""
    from kvcomp_eval.compare.config import ConfigError
    from kvcomp_eval.compare.fresh import run_fresh
    from kvcomp_eval.compare.gate import baseline_of
    from kvcomp_eval.compare.journal import JournalError

    try:
        finished, problems = run_fresh(options.config, options.limit, options.folder, options.quiet)
        if problems:
            raise ConfigError("No baseline was written: " + "; ".join(problems))
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(baseline_of(finished), indent=1, ensure_ascii=False), encoding="utf-8")
    except (ConfigError, JournalError, OSError) as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    print(f"Written to {options.output}")
    return OK
