"""The ``kvcomp-eval`` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from kvcomp_eval import __version__, doctor
from kvcomp_eval.analysis import command as analysis_command
from kvcomp_eval.compare import baseline_command, check_command
from kvcomp_eval.compare import command as compare_command
from kvcomp_eval.compare.report import command as report_command
from kvcomp_eval.heads import command as heads_command
from kvcomp_eval.methods import command as methods_command

#: Subcommand -> module with ``add_arguments`` and ``run``, and what it does.
COMMANDS: dict[str, tuple[Any, str]] = {
    "methods": (methods_command, "list the compression methods and their hyper-parameters"),
    "compare": (compare_command, "run methods x budgets x tasks from a YAML file and report"),
    "report": (report_command, "print and write the report of finished runs"),
    "baseline": (baseline_command, "record the scores that `check` compares with"),
    "check": (check_command, "exit 1 if a method became worse than its baseline"),
    "heads": (heads_command, "measure a model's visual heads, for method=sparsemm"),
    "analyze": (analysis_command, "what rate-controlled refresh did: rates, terciles of drift, correlations"),
    "doctor": (doctor, "what is installed, and what each method, family and task needs"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="kvcomp-eval", description="KV-cache compression for multimodal models.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args(argv)
    code: int = options.run(options)
    return code
