"""One measure of many rows: intervals, differences to the full cache and the reference, groups of equals."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

from kvcomp_eval.metrics.statistics import Clusters, Estimate, bootstrap_mean, holm, paired_bootstrap

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
    is_over_shared : bool
        Take the documents that all rows have; otherwise every row its own, which says nothing of the others' values.
    """

    name: str
    values: list[Values]
    higher_is_better: bool = True
    is_tested: bool = True
    is_over_shared: bool = True


def add_measure(rows: list[dict[str, Any]], measure: Measure, clusters: Clusters | None = None) -> None:
    """Add a measure to every row that has it.

    Parameters
    ----------
    rows : list of dict
        With ``anchor`` and ``band``, the index of the reference row of equal nominal budget and of equal bytes, or
        None; ``measures`` is added to.
    measure : Measure
    clusters : mapping, optional
        Document -> the images or videos that it is about; those of one cluster are resampled together.
    """
    values = _compared(measure)
    for index, found in values.items():
        estimate = bootstrap_mean(found, clusters)
        sizes = {"documents": estimate.num_documents, "clusters": estimate.num_clusters}
        rows[index]["measures"][measure.name] = _estimate(estimate) | sizes
    if measure.is_tested:
        tests = _Tests(rows, measure, values, clusters)
        tests.against_full()
        for anchor in values:
            tests.against_reference(anchor)
            tests.group(anchor)


def _compared(measure: Measure) -> dict[int, Values]:
    """Row -> document -> value, for rows that have the measure at all."""
    present = {index: found for index, found in enumerate(measure.values) if found}
    if not measure.is_over_shared or not present:
        return present
    shared = sorted(set.intersection(*map(set, present.values())), key=str)
    return {index: {key: found[key] for key in shared} for index, found in present.items()} if shared else {}


@dataclass(frozen=True)
class _Tests:
    """Paired comparisons of rows by one measure.

    Parameters
    ----------
    rows, measure, clusters
        As in :func:`add_measure`.
    values : dict
        Row -> document -> value, over the same documents.
    """

    rows: list[dict[str, Any]]
    measure: Measure
    values: Mapping[int, Values]
    clusters: Clusters | None

    def against_full(self) -> None:
        """Differences to the full cache."""
        full = next((index for index in self.values if self.rows[index]["budget"] is None), None)
        if full is not None:
            for index in self.values.keys() - {full}:
                self._entry(index)["vs_full"] = _estimate(self._difference(index, full))

    def against_reference(self, anchor: int) -> None:
        """Differences to a reference row of the same nominal budget."""
        members = self._members("anchor", anchor)
        found = {index: self._difference(index, anchor) for index in members if index != anchor}
        adjusted = holm({index: estimate.p_value for index, estimate in found.items()})
        for index, estimate in found.items():
            self._entry(index)["vs_reference"] = {
                **_estimate(estimate),
                "p_holm": adjusted[index],
                "detectable": estimate.minimum_detectable_effect,
            }

    def group(self, anchor: int) -> None:
        """Letters: rows that do not differ significantly from the best of the rest share one (Holm per letter)."""
        sign = 1 if self.measure.higher_is_better else -1
        left = sorted(self._members("band", anchor), key=lambda index: -sign * self._entry(index)["value"])
        for letter in ascii_lowercase:
            if not left:
                return
            best, others = left[0], left[1:]
            adjusted = holm({index: self._difference(best, index).p_value for index in others})
            same = [best, *(index for index in others if adjusted[index] >= ALPHA)]
            for index in same:
                self._entry(index)["group"] = letter
            left = [index for index in left if index not in same]

    def _members(self, kind: str, anchor: int) -> list[int]:
        return [index for index in self.values if self.rows[index][kind] == anchor]

    def _entry(self, index: int) -> dict[str, Any]:
        entry: dict[str, Any] = self.rows[index]["measures"][self.measure.name]
        return entry

    def _difference(self, index: int, other: int) -> Estimate:
        return paired_bootstrap(self.values[index], self.values[other], self.clusters)


def _estimate(estimate: Estimate) -> dict[str, Any]:
    """Mean and interval; documents that all share an image or video say nothing about others, so there is none."""
    bounds = estimate.percentile if estimate.num_clusters > 1 else None
    return {"value": estimate.mean, "low": bounds and bounds.low, "high": bounds and bounds.high}
