"""``kvcomp-eval analyze drift FILE``."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``analyze``."""
    parser.add_argument("what", choices=["drift"], help="what to analyze: traces of rate-controlled refresh")
    parser.add_argument("trace", type=Path, help="file of method=rcr,trace=FILE.parquet")
    parser.add_argument(
        "--scores",
        type=Path,
        help="CSV with one row per prompt in the order of the run: numeric columns are scores",
    )
    parser.add_argument("--plot", type=Path, help="write a plot to this file (.svg, .png, .pdf)")


def run(options: argparse.Namespace) -> int:
    """Print realised rates, terciles and correlations."""
    from kvcomp_eval.analysis.summary import print_drift  # torch and pandas, which --help does not need

    return print_drift(options)
