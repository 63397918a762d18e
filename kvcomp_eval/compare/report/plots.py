"""Plots of a report as SVG text that lives inside the page: its fonts, its colours, light and dark."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib
from markupsafe import escape
from matplotlib.figure import Figure

from kvcomp_eval.compare.leaderboard import EQUAL_BYTES, FIDELITY, SCORE
from kvcomp_eval.compare.report.tables import budget_text, in_order, kind_of

#: Okabe & Ito's colours that are readable on white and on near-black; each comes with its own marker.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b", "#7a7adb", "#8c6d5a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
#: Inches: text of 10 points is readable where a figure fills a telephone's screen.
_WIDTH = 5.2
#: Ticks of a logarithmic axis that are closer would be written over each other.
_TICK_RATIO = 1.25
#: Colours that the page's style sheet replaces.
INK, _GRID = "#010203", "#040506"

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kvcomp-eval",
    "font.size": 10,
    "font.family": "sans-serif",
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _GRID,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


_SHARE = "prompt cache held, % of full"


def _share(row: dict[str, Any]) -> float:
    return 100 * float(row["costs"]["ratio"])


def pareto_plots(board: dict[str, Any]) -> dict[str, str]:
    """Title -> SVG: fidelity and score against bytes, fidelity against time per token; none without a valid row."""
    rows = [row for row in board["summary"] if not row["invalid"]]
    if not rows:
        return {}
    plots = {"Fidelity against bytes": _scatter(rows, FIDELITY, _SHARE, _share, is_bytes=True)}
    if all(SCORE in row["measures"] for row in rows):
        plots["Score against bytes"] = _scatter(rows, SCORE, _SHARE, _share, is_bytes=True)
    if all(row["costs"]["decode"] for row in rows):
        time = _scatter(rows, FIDELITY, "ms per token, median", lambda row: float(row["costs"]["decode"]))
        plots["Fidelity against time"] = time
    return plots


def budget_curves(board: dict[str, Any]) -> dict[str, str]:
    """Task -> SVG of its main metric over the budget, where a method ran at two budgets or more."""
    plots = {}
    for task, rows in board["tasks"].items():
        main = board["main_metrics"][task]
        valid = [row for row in rows if not row["invalid"] and main in row["measures"]]
        styles = _styles(valid)
        curves = {label: [row for row in in_order(valid) if row["label"] == label] for label in styles}
        curves = {label: found for label, found in curves.items() if len(found) > 1}
        if curves:
            plots[task] = _curves(curves, valid, styles, main)
    return plots


def forest_plot(board: dict[str, Any]) -> str | None:
    """Differences in fidelity to the reference method, with intervals; None if there are none."""
    rows = [row for row in in_order(board["summary"]) if kind_of(row) == "ranked"]
    rows = [row for row in rows if "vs_reference" in row["measures"].get(FIDELITY, {})]
    if not rows:
        return None

    def draw(axes: Any) -> None:
        for place, row in enumerate(reversed(rows)):
            found = row["measures"][FIDELITY]["vs_reference"]
            is_clear = found["p_holm"] < 0.05
            axes.plot([found["low"], found["high"]], [place, place], color=COLOURS[0], lw=2)
            axes.plot(found["value"], place, "o", color=COLOURS[0], mfc=COLOURS[0] if is_clear else "white")
        axes.axvline(0, color=INK, lw=0.8)
        labels = [f"{row['label']}, {budget_text(row['budget'])}" for row in reversed(rows)]
        axes.set_yticks(range(len(rows)), labels)
        axes.set_xlabel(f"fidelity minus that of {board['reference']} at equal bytes\n(filled: p < 0.05, Holm)")

    return svg(draw, "Differences in fidelity to the reference method", height=1.0 + 0.28 * len(rows))


def _styles(rows: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Label -> colour and marker, in order of appearance."""
    labels = list(dict.fromkeys(row["label"] for row in rows if row["budget"] is not None))
    count = len(COLOURS)
    return {label: (COLOURS[i % count], MARKERS[(i + i // count) % count]) for i, label in enumerate(labels)}


def _scatter(
    rows: list[dict[str, Any]],
    measure: str,
    label: str,
    of: Callable[[dict[str, Any]], float],
    is_bytes: bool = False,
) -> str:
    """One point per row; what no other row beats in both directions is joined by a line."""
    styles = _styles(rows)

    def draw(axes: Any) -> None:
        front = _frontier([(of(row), row["measures"][measure]["value"]) for row in rows])
        axes.step(*zip(*front, strict=True), where="post", color=INK, lw=0.8, ls=":", label="nothing cheaper is better")
        for name, (colour, marker) in styles.items():
            own = [row for row in rows if row["label"] == name]
            across = [of(row) * (_aside(row, rows, of) if is_bytes else 1.0) for row in own]
            _errors(axes, across, [row["measures"][measure] for row in own], colour, marker, name)
        for row in rows:
            if row["budget"] is None:
                _errors(axes, [of(row)], [row["measures"][measure]], INK, "x", "full cache")
        if is_bytes:
            ticks: list[float] = []
            for share in sorted({round(of(row), 1) for row in rows}):
                if not ticks or share > _TICK_RATIO * ticks[-1]:
                    ticks.append(share)
            axes.set_xscale("log")
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
        _dress(axes, label, measure)

    return svg(draw, f"{measure} against {label}")


def _aside(row: dict[str, Any], rows: list[dict[str, Any]], of: Callable[[dict[str, Any]], float]) -> float:
    """Factor that moves a row beside those of equal bytes, which would hide it."""
    peers = [other for other in rows if abs(of(other) - of(row)) <= EQUAL_BYTES * of(row)]
    return 1.025 ** (peers.index(row) - (len(peers) - 1) / 2)


def _frontier(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no cheaper or equally cheap one reaches, from cheap to costly."""
    front: list[tuple[float, float]] = []
    for cost, value in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or value > front[-1][1]:
            front.append((cost, value))
    return front


def _curves(
    curves: dict[str, list[dict[str, Any]]],
    rows: list[dict[str, Any]],
    styles: dict[str, tuple[str, str]],
    main: str,
) -> str:
    def draw(axes: Any) -> None:
        for label, found in curves.items():
            colour, marker = styles[label]
            _errors(
                axes,
                [_share(row) for row in found],
                [row["measures"][main] for row in found],
                colour,
                marker,
                label,
                line=True,
            )
        for row in rows:
            if row["budget"] is None:
                axes.axhline(row["measures"][main]["value"], color=INK, lw=0.8, ls="--", label="full cache")
        _dress(axes, _SHARE, main)

    return svg(draw, f"{main} over the budget")


def _errors(
    axes: Any,
    across: list[float],
    measures: list[dict[str, Any]],
    colour: str,
    marker: str,
    label: str,
    line: bool = False,
) -> None:
    values = [measure["value"] for measure in measures]
    bars = [
        [measure["value"] - (measure["value"] if measure["low"] is None else measure["low"]) for measure in measures],
        [(measure["value"] if measure["high"] is None else measure["high"]) - measure["value"] for measure in measures],
    ]
    axes.errorbar(
        across, values, yerr=bars, fmt=f"{marker}-" if line else marker, color=colour, ms=6, lw=1.3, elinewidth=0.8,
        label=label,
    )  # fmt: skip


def _dress(axes: Any, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)


def _add_legend(figure: Figure) -> None:
    """What the lines and markers of all panels mean, below them; the figure grows by it."""
    handles, labels = [], []
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.append(handle)
            labels.append(label)
    if not labels:
        return
    columns = max(1, int(72 * _WIDTH // (40 + 4.8 * max(map(len, labels)))))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * rows)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def svg(draw: Callable[[Any], None], description: str, height: float = 3.0, panels: int = 1) -> str:
    """Draw on fresh axes, or several below each other, and return an ``<svg>`` element that fits the page."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        draw(figure.subplots(panels))
        _add_legend(figure)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text))
    prefix = f"p{hashlib.sha256(description.encode()).hexdigest()[:8]}"
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font: \1px system-ui, sans-serif", text)
    text = text.replace(INK, "currentColor").replace(_GRID, "var(--line)")
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)
