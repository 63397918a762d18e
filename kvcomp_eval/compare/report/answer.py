"""The answer of a comparison in sentences: which method at which bytes loses how much."""

from __future__ import annotations

from typing import Any

from kvcomp_eval.compare.leaderboard import FIDELITY, SCORE
from kvcomp_eval.compare.report.tables import difference, interval, size
from kvcomp_eval.methods.registry import method_class


def answers(board: dict[str, Any]) -> list[str]:
    """One paragraph per band of equal bytes, from the most bytes to the least; then the rows that hold other bytes."""
    rows = board["summary"]
    bands = sorted({row["band"] for row in rows if row["band"] is not None}, key=lambda band: -_bytes(rows[band]))
    found = [_band([row for row in rows if row["band"] == band and row["rank"] is not None]) for band in bands]
    found.append(_others([row for row in rows if row["band"] is None and row["budget"] and not row["invalid"]]))
    return [text for text in found if text] or ["No valid row can be ranked yet."]


def _others(rows: list[dict[str, Any]]) -> str:
    texts = [
        f"{_named(row)} at {size(row['costs']['device_bytes'])} ({100 * row['costs']['ratio']:.1f} %): "
        f"fidelity {interval(row['measures'][FIDELITY])}"
        for row in sorted(rows, key=_bytes)
        if FIDELITY in row["measures"]
    ]
    return f"Not ranked, since no row of the reference method holds as many bytes: {'; '.join(texts)}." if texts else ""


def _band(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    best = min(rows, key=lambda row: row["rank"])
    fidelity = best["measures"][FIDELITY]
    costs = best["costs"]
    text = (
        f"At {size(costs['device_bytes'])} per prompt ({100 * costs['ratio']:.1f} % of the full cache), "
        f"{_named(best)} stays closest to the full cache: fidelity {interval(fidelity)}"
    )
    score = best["measures"].get(SCORE, {}).get("vs_full")
    text += f", score {difference(score)} against the full cache" if score else ""
    text += f", {costs['decode']:.1f} ms per token. " if costs["decode"] is not None else ". "
    peers = [row["label"] for row in rows if row is not best and row["measures"][FIDELITY].get("group") == "a"]
    worse = [row["label"] for row in rows if row["measures"][FIDELITY].get("group") not in (None, "a")]
    if peers:
        text += f"Not distinguishable from it: {', '.join(peers)}. "
    if worse:
        text += f"Significantly worse: {', '.join(worse)}."
    return text.strip()


def _named(row: dict[str, Any]) -> str:
    is_reference = method_class(row["method"]).kind == "reference"
    return f"{row['label']} (a reference, not for use)" if is_reference else str(row["label"])


def _bytes(row: dict[str, Any]) -> float:
    return float(row["costs"]["device_bytes"])
