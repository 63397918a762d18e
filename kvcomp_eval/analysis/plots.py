"""Plots of traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from kvcomp_eval.analysis.drift import by_step

BLUE, ORANGE = "#0072b2", "#d55e00"


def plot_drift(frame: pd.DataFrame, path: Path) -> None:
    """Threshold and drift over the steps, realised rate by layer; median and middle half over the prompts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    over_time, by_layer = figure.subplots(1, 2)
    draw_drift(over_time, by_step(frame))
    over_time.legend(frameon=False)
    over_time.set_title("Median and middle half of the prompts")
    rates = frame.groupby("layer")["refreshed"].mean()
    by_layer.bar(rates.index, rates, color=BLUE)
    by_layer.axhline(frame["refreshed"].mean(), color="black", linewidth=1, linestyle="--")
    by_layer.set(
        xlabel="layer", ylabel="share of steps refreshed", title="Refreshes by layer (line: mean)", ylim=(0, 1)
    )
    figure.savefig(path)


def draw_drift(axes: Any, steps: pd.DataFrame) -> None:
    """Drift and, unless it refreshes always or never, the threshold over the steps.

    Parameters
    ----------
    axes : matplotlib Axes
    steps : DataFrame
        Of :func:`~kvcomp_eval.analysis.drift.by_step`.
    """
    lines = {"drift": (BLUE, "-", "drift")}
    if steps["tau"].between(0, 1, inclusive="neither").any():
        lines["tau"] = (ORANGE, "--", "threshold tau")
    for name, (colour, style, label) in lines.items():
        low, high = steps[f"{name}_low"], steps[f"{name}_high"]
        axes.fill_between(steps.index, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(steps.index, steps[name], style, color=colour, label=label)
    axes.set(xlabel="decode step", ylabel="attention mass")
    axes.set_ylim(bottom=0)
