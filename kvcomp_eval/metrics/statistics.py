"""Uncertainty of paired scores: bootstrap intervals and p, Holm's correction, detectable effects.

Everything is clustered: documents on the same image or video are resampled together (Cameron & Miller, "A
Practitioner's Guide to Cluster-Robust Inference", 2015). Without clusters every document is its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = Mapping[Hashable, float]
Clusters = Mapping[Hashable, Hashable]

RESAMPLES = 10_000
SEED = 0
#: Floats that one batch of resamples may hold; keeps ten thousand resamples of a large task in memory.
_BATCH_FLOATS = 4_000_000


@dataclass(frozen=True)
class Interval:
    """Two bounds of a confidence interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A mean with its bootstrap distribution in short.

    Parameters
    ----------
    mean : float
        Over documents, not over clusters.
    percentile, bca : Interval
        Efron's percentile and bias-corrected accelerated intervals.
    p_value : float
        Two-sided bootstrap p of "the mean is 0": twice the smaller tail of the distribution beyond 0, which agrees
        with the percentile interval. Never below 2 / (resamples + 1), nor below 2 ** (1 - clusters), the smallest
        p that flipping the signs of so few clusters can give.
    minimum_detectable_effect : float
        See :func:`minimum_detectable_effect`; nan for a single cluster.
    num_documents, num_clusters : int
    """

    mean: float
    percentile: Interval
    bca: Interval
    p_value: float
    minimum_detectable_effect: float
    num_documents: int
    num_clusters: int


def bootstrap_mean(
    values: Scores,
    clusters: Clusters | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Estimate:
    """Mean of a score over documents, clusters resampled with replacement.

    Parameters
    ----------
    values : mapping
        Document -> score.
    clusters : mapping, optional
        Document -> image or video that it is about.

    Examples
    --------
    >>> estimate = bootstrap_mean({0: 0.1, 1: 0.4, 2: 0.3})
    >>> round(estimate.mean, 3)
    0.267
    """
    sums, counts = _cluster_totals(values, clusters)
    mean = float(sums.sum() / counts.sum())
    percentile, bca, p_value = _bootstrap(sums, counts, confidence, resamples, seed)
    return Estimate(
        mean=mean,
        percentile=percentile,
        bca=bca,
        p_value=p_value,
        minimum_detectable_effect=minimum_detectable_effect(values, clusters, alpha=1 - confidence),
        num_documents=len(values),
        num_clusters=len(sums),
    )


def paired_bootstrap(
    candidate: Scores, reference: Scores, clusters: Clusters | None = None, **options: Any
) -> Estimate:
    """Estimate ``candidate - reference`` over the same documents.

    Parameters
    ----------
    candidate, reference : mapping
        Document -> score.
    clusters, options
        As in :func:`bootstrap_mean`.

    Raises
    ------
    ValueError
        The two sides do not hold the same documents.
    """
    return bootstrap_mean(paired_differences(candidate, reference), clusters, **options)


def paired_differences(candidate: Scores, reference: Scores) -> dict[Hashable, float]:
    """``candidate - reference`` per document, in the reference's order; refuses unequal sets of documents."""
    unpaired = sorted(map(str, candidate.keys() ^ reference.keys()))
    if unpaired:
        raise ValueError(
            f"The two sides hold different documents ({len(candidate)} and {len(reference)}; on one side only: "
            f"{', '.join(unpaired[:5])}{', ...' if len(unpaired) > 5 else ''}); compare the same documents of both."
        )
    return {document: candidate[document] - score for document, score in reference.items()}


def holm(p_values: Mapping[Hashable, float]) -> dict[Hashable, float]:
    """Adjusted p-values of a family of comparisons (Holm 1979): reject where they are at most alpha."""
    from statsmodels.stats.multitest import multipletests

    if not p_values:
        return {}
    adjusted = multipletests(list(p_values.values()), method="holm")[1]
    return dict(zip(p_values, map(float, adjusted), strict=True))


def minimum_detectable_effect(
    differences: Scores, clusters: Clusters | None = None, *, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Smallest true mean difference that a two-sided paired t-test of this size would find.

    The spread is that of ``differences``; for clusters, of their linearised sums, so the number that counts is the
    number of clusters. 0 if all differences are equal, nan for a single cluster.
    """
    from statsmodels.stats.power import TTestPower

    sums, counts = _cluster_totals(differences, clusters)
    groups = len(sums)
    if groups < 2:
        return float("nan")
    residuals = (sums - counts * sums.sum() / counts.sum()) / counts.mean()
    spread = float(residuals.std(ddof=1))
    standardised = TTestPower().solve_power(nobs=groups, alpha=alpha, power=power)
    return spread * float(np.squeeze(standardised))


def _cluster_totals(values: Scores, clusters: Clusters | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums of scores and numbers of documents, one per cluster, in the order of first appearance."""
    if not values:
        raise ValueError("There are no documents to average; run the task with a limit of at least 1.")
    broken = [document for document, value in values.items() if not np.isfinite(value)]
    if broken:
        raise ValueError(f"Document {broken[0]!r} has the score {values[broken[0]]}; leave it out on both sides.")
    missing = [document for document in values if clusters is not None and document not in clusters]
    if missing:
        raise ValueError(f"Document {missing[0]!r} has no cluster; give every document its image or video.")
    labels: Sequence[Hashable] = [document if clusters is None else clusters[document] for document in values]
    index = {label: row for row, label in enumerate(dict.fromkeys(labels))}
    rows = np.array([index[label] for label in labels])
    scores = np.fromiter(values.values(), dtype=np.float64, count=len(values))
    sums, counts = np.bincount(rows, weights=scores), np.bincount(rows)
    return sums.astype(np.float64), counts.astype(np.float64)


def _bootstrap(
    sums: NDArray[np.float64], counts: NDArray[np.float64], confidence: float, resamples: int, seed: int
) -> tuple[Interval, Interval, float]:
    """Percentile and BCa intervals of ``sums.sum() / counts.sum()`` and the two-sided p of 0."""
    from scipy.stats import bootstrap

    means = sums / counts
    least_p = 2.0 ** (1 - len(sums))
    if np.ptp(means) == 0:
        # Nothing varies: every resample has the same mean, and BCa is undefined.
        constant = Interval(float(means[0]), float(means[0]))
        return constant, constant, 1.0 if means[0] == 0 else max(least_p, 2 / (resamples + 1))

    def ratio(totals: NDArray[np.float64], sizes: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        return totals.sum(axis=axis) / sizes.sum(axis=axis)

    common: dict[str, Any] = {
        "data": (sums, counts),
        "statistic": ratio,
        "paired": True,
        "vectorized": True,
        "confidence_level": confidence,
        "batch": max(1, _BATCH_FLOATS // len(sums)),
    }
    drawn = bootstrap(**common, n_resamples=resamples, method="percentile", rng=np.random.default_rng(seed))
    with warnings.catch_warnings():
        # Degenerate jackknife of two clusters: scipy warns and returns nan, which the caller sees.
        warnings.simplefilter("ignore")
        corrected = bootstrap(**common, n_resamples=0, bootstrap_result=drawn, method="BCa")
    distribution = drawn.bootstrap_distribution
    tail = min(int((distribution <= 0).sum()), int((distribution >= 0).sum()))
    p_value = min(1.0, max(least_p, 2 * (tail + 1) / (resamples + 1)))
    return (
        Interval(*map(float, drawn.confidence_interval)),
        Interval(*map(float, corrected.confidence_interval)),
        p_value,
    )
