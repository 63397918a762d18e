"""The tables of ``kvcomp-eval analyze drift``."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from kvcomp_eval.analysis import drift
from kvcomp_eval.analysis.plots import plot_drift


def print_drift(options: argparse.Namespace) -> int:
    """Print realised rates, terciles and correlations."""
    try:
        frame = drift.load(options.trace)
        prompts = drift.by_prompt(frame)
        scores = None if options.scores is None else read_scores(options.scores, len(prompts))
    except (OSError, ValueError) as error:
        Console(stderr=True).print(f"[red]{error}[/red]")
        return 2
    console = Console()
    console.print(
        f"{len(prompts)} prompts, {len(frame)} layer-steps; realised refresh rate "
        f"{frame['refreshed'].mean():.3f}, mean drift {frame['drift'].mean():.4f}"
    )
    if len(prompts) >= 3:
        console.print(as_table(drift.by_tercile(prompts, scores), "by tercile of mean drift"))
    console.print(as_table(correlations(prompts, scores), "Spearman's rank correlation with mean drift"))
    if options.plot is not None:
        plot_drift(frame, options.plot)
        console.print(f"Plot written to {options.plot}")
    return 0


def read_scores(path: Path, prompts: int) -> pd.DataFrame:
    """Numeric columns of a CSV file, one row per prompt."""
    scores = pd.read_csv(path).select_dtypes("number")
    if len(scores) != prompts:
        raise ValueError(f"{str(path)!r} has {len(scores)} rows, but the trace has {prompts} prompts.")
    return scores


def correlations(prompts: pd.DataFrame, scores: pd.DataFrame | None) -> pd.DataFrame:
    """Correlation of mean drift with the number of steps, the rate and every score."""
    others = {"steps": prompts["steps"], "rate": prompts["rate"]}
    if scores is not None:
        others |= {str(name): scores[name] for name in scores}
    found = {name: drift.correlation(prompts["drift"], column) for name, column in others.items()}
    return pd.DataFrame({"rho": {n: c.rho for n, c in found.items()}, "p": {n: c.p for n, c in found.items()}})


def as_table(frame: pd.DataFrame, title: str) -> Table:
    """A DataFrame as a terminal table."""
    table = Table(title=title, title_justify="left")
    table.add_column(str(frame.index.name or ""))
    for name in frame:
        table.add_column(str(name), justify="right")
    for index, row in frame.iterrows():
        table.add_row(str(index), *(f"{value:.4g}" for value in row))
    return table
