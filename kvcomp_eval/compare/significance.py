"""One measure of many rows: intervals, differences to the full cache and the reference, groups of equals."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

from kvcomp_eval.metrics.statistics import Estimate, bootstrap_mean, holm, paired_bootstrap

#: Differences with a smaller adjusted p-value count.
ALPHA = 0.05

#: Document -> value.
Values = Mapping[Hashable, float]


@dataclass(frozen=True)
class Measure:
    """One measure of all rows.

    Parameters
    ----------
    name : str
    values : list
        Document -> value, one mapping per row; empty where a row lacks the measure.
    higher_is_better : bool
    is_tested : bool
        Compare rows with each other, not only estimate each.
    """

    name: str
    values: list[Values]
    higher_is_better: bool = True
    is_tested: bool = True


def add_measure(rows: list[dict[str, Any]], measure: Measure) -> None:
    """Add a measure to every row that has it, over the documents that all of those have.

    Parameters
    ----------
    rows : list of dict
        With ``anchor`` and ``band``, the index of the reference row of equal nominal budget and of equal bytes, or
        None; ``measures`` is added to.
    measure : Measure
    """
    present = [index for index, found in enumerate(measure.values) if found]
    shared = sorted(set.intersection(*(set(measure.values[index]) for index in present)), key=str) if present else []
    if not shared:
        return
    values = {index: {key: measure.values[index][key] for key in shared} for index in present}
    entries = {index: _estimate(bootstrap_mean(values[index])) for index in present}
    for index, entry in entries.items():
        rows[index]["measures"][measure.name] = entry | {"documents": len(shared)}
    if measure.is_tested:
        _against_full(rows, measure.name, values)
        for anchor in present:
            _against_reference(rows, measure.name, _members(rows, "anchor", anchor, present), anchor, values)
            _group(rows, measure, _members(rows, "band", anchor, present), values)


def _members(rows: list[dict[str, Any]], kind: str, anchor: int, present: list[int]) -> list[int]:
    return [index for index in present if rows[index][kind] == anchor]


def _against_full(rows: list[dict[str, Any]], name: str, values: Mapping[int, Values]) -> None:
    full = next((index for index in values if rows[index]["budget"] is None), None)
    if full is not None:
        for index in values.keys() - {full}:
            rows[index]["measures"][name]["vs_full"] = _estimate(paired_bootstrap(values[index], values[full]))


def _against_reference(
    rows: list[dict[str, Any]], name: str, members: list[int], anchor: int, values: Mapping[int, Values]
) -> None:
    found = {index: paired_bootstrap(values[index], values[anchor]) for index in members if index != anchor}
    adjusted = holm({index: estimate.p_value for index, estimate in found.items()})
    for index, estimate in found.items():
        rows[index]["measures"][name]["vs_reference"] = {
            **_estimate(estimate),
            "p_holm": adjusted[index],
            "detectable": estimate.minimum_detectable_effect,
        }


def _group(rows: list[dict[str, Any]], measure: Measure, members: list[int], values: Mapping[int, Values]) -> None:
    """Letters: rows that do not differ significantly from the best of the rest share one (Holm per letter)."""
    sign = 1 if measure.higher_is_better else -1
    left = sorted(members, key=lambda index: -sign * rows[index]["measures"][measure.name]["value"])
    for letter in ascii_lowercase:
        if not left:
            return
        best, others = left[0], left[1:]
        adjusted = holm({index: paired_bootstrap(values[best], values[index]).p_value for index in others})
        same = [best, *(index for index in others if adjusted[index] >= ALPHA)]
        for index in same:
            rows[index]["measures"][measure.name]["group"] = letter
        left = [index for index in left if index not in same]


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.mean, "low": estimate.percentile.low, "high": estimate.percentile.high}
