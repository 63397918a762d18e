"""Plots of what the methods did: drift over the steps, heat maps of the heads."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd

from kvcomp_eval.analysis.plots import draw_drift
from kvcomp_eval.compare.report.plots import COLOURS, INK, svg

#: Heads' facts, what their colours mean, and how a cell is written.
_MAPS = {
    "static": ("how often a head is static", "{:.2f}"),
    "sparsity": ("sparsity", "{:.3f}"),
    "drift": ("drift over the rehearsed steps", "{:.3f}"),
    "entries": ("entries that a head holds, % of the prompt", "{:.1f}"),
}
#: Cells of larger maps are not written out.
_WRITTEN_LAYERS = 10


def behaviour_plots(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Title -> SVG, one per row that was traced."""
    drifts = {f"{name}: drift and refreshes": _drift(name, row) for name, row in found["drift"].items()}
    return drifts | {f"{name}: heads": _heads(name, row) for name, row in found["heads"].items()}


def _drift(name: str, row: dict[str, Any]) -> str:
    """Drift and threshold, and below them the share of layers that refreshed."""
    steps = pd.DataFrame(row["steps"]).set_index("step")

    def draw(panels: Any) -> None:
        above, below = panels
        draw_drift(above, steps)
        above.set(xlabel="")
        below.plot(steps.index, steps["refreshed"], color=COLOURS[2], label="share of layers refreshed")
        if row["target"] is not None:
            below.axhline(row["target"], color=INK, lw=0.8, ls=":", label="target share")
        below.set(xlabel="decode step", ylabel="refreshed", ylim=(-0.03, 1.03))

    description = (
        f"{name}: drift and refreshes over {len(steps)} decode steps of {row['answers']} answers; mean drift "
        f"{row['drift']:.3f}, {100 * row['rate']:.0f} % of layer-steps refreshed"
    )
    return svg(draw, description, height=3.4, panels=2)


def _heads(name: str, row: dict[str, Any]) -> str:
    """One map per fact: layers across, KV heads down."""
    maps = {key: np.array(row[key]).T * (100 if key == "entries" else 1) for key in _MAPS if key in row}
    heads, layers = next(iter(maps.values())).shape

    def draw(panels: Any) -> None:
        panels = np.atleast_1d(panels)
        for axes, (key, values) in zip(panels, maps.items(), strict=True):
            _heat_map(axes, values, *_MAPS[key], top=1.0 if key == "static" else None)
        panels[-1].set_xlabel("layer")

    ranges = ", ".join(f"{_MAPS[key][0]} {values.min():.2f} to {values.max():.2f}" for key, values in maps.items())
    description = f"{name}: {layers} layers by {heads} KV heads, means over {row['answers']} answers; {ranges}"
    return svg(draw, description, height=0.2 + len(maps) * (0.6 + 0.22 * heads), panels=len(maps))


def _heat_map(axes: Any, values: np.ndarray, title: str, form: str, top: float | None) -> None:
    colours = matplotlib.colormaps["cividis"].resampled(32)  # more colours would turn the scale into a picture
    low = 0.0 if top is not None else values.min()
    high = top if top is not None else max(values.max(), low + 1e-6)
    mesh = axes.pcolormesh(values, cmap=colours, vmin=low, vmax=high)
    heads, layers = values.shape
    if layers <= _WRITTEN_LAYERS:
        for (head, layer), value in np.ndenumerate(values):
            ink = "black" if value > (low + high) / 2 else "white"
            axes.text(layer + 0.5, head + 0.5, form.format(value), color=ink, ha="center", va="center", fontsize=8)
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_ylabel("KV head")
    every = -(-layers // 16)
    axes.set_xticks(np.arange(0, layers, every) + 0.5, range(0, layers, every))
    axes.set_yticks(np.arange(heads) + 0.5, range(heads))
    axes.grid(visible=False)
    axes.invert_yaxis()
    axes.figure.colorbar(mesh, ax=axes, fraction=0.05, pad=0.02)
