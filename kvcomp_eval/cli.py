"""The ``kvcomp-eval`` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from kvcomp_eval import __version__
from kvcomp_eval.methods.registry import METHODS, method_class, method_parameters


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="kvcomp-eval", description="KV-cache compression for multimodal models.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("methods", help="list the compression methods and their hyper-parameters")
    parser.parse_args(argv)
    for name in METHODS:
        defaults = ", ".join(f"{key}={value}" for key, value in method_parameters(name).items())
        print(f"{name}  ({method_class(name).paper})\n    {defaults}")
    return 0
