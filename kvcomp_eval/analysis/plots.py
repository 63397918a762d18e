"""Plots of traces."""

from __future__ import annotations

from pathlib import Path

import pandas as pd


def plot_drift(frame: pd.DataFrame, path: Path) -> None:
    """Threshold and drift over the steps, realised rate by layer; median and middle half over the prompts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    over_time, by_layer = figure.subplots(1, 2)
    steps = frame.groupby(["prompt", "step"])[["drift", "tau"]].mean().groupby("step")
    for name, colour in (("drift", "tab:blue"), ("tau", "tab:orange")):
        low, middle, high = (steps[name].quantile(q) for q in (0.25, 0.5, 0.75))
        over_time.fill_between(middle.index, low, high, color=colour, alpha=0.2, linewidth=0)
        over_time.plot(middle, color=colour, label={"drift": "drift", "tau": "threshold tau"}[name])
    over_time.set(xlabel="decode step", ylabel="attention mass", title="Median and middle half of the prompts")
    over_time.legend(frameon=False)
    rates = frame.groupby("layer")["refreshed"].mean()
    by_layer.bar(rates.index, rates, color="tab:blue")
    by_layer.axhline(frame["refreshed"].mean(), color="black", linewidth=1, linestyle="--")
    by_layer.set(
        xlabel="layer", ylabel="share of steps refreshed", title="Refreshes by layer (line: mean)", ylim=(0, 1)
    )
    figure.savefig(path)
