"""Bootstrap, p-values and detectable effects: known formulas, calibration, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from kvcomp_eval.metrics.statistics import (
    bootstrap_mean,
    holm,
    minimum_detectable_effect,
    paired_bootstrap,
    paired_differences,
)


def sample(size, mean=0.0, seed=0):
    return dict(enumerate(np.random.default_rng(seed).normal(mean, 1, size)))


def test_interval_of_a_large_sample_is_that_of_the_normal_theory():
    values = sample(400)
    estimate = bootstrap_mean(values)
    scores = np.array(list(values.values()))
    error = scores.std(ddof=1) / 20
    assert estimate.mean == pytest.approx(scores.mean())
    for interval in (estimate.percentile, estimate.bca):
        assert interval.low == pytest.approx(scores.mean() - 1.96 * error, abs=0.1 * error)
        assert interval.high == pytest.approx(scores.mean() + 1.96 * error, abs=0.1 * error)
    assert estimate.p_value == pytest.approx(stats.ttest_1samp(scores, 0).pvalue, abs=0.02)


def test_percentile_interval_equals_plain_resampling():
    """Ten thousand resamples drawn with numpy alone; a skewed sample moves BCa away from it."""
    scores = np.random.default_rng(3).exponential(size=40)
    estimate = bootstrap_mean(dict(enumerate(scores)))
    rows = np.random.default_rng(5).integers(0, 40, (10_000, 40))
    low, high = np.percentile(scores[rows].mean(1), [2.5, 97.5])
    assert (estimate.percentile.low, estimate.percentile.high) == pytest.approx((low, high), abs=0.02)
    assert estimate.bca.high > estimate.percentile.high
    assert estimate.bca.low > estimate.percentile.low


def test_same_seed_same_figures():
    values = sample(30)
    assert bootstrap_mean(values) == bootstrap_mean(values)
    assert bootstrap_mean(values) != bootstrap_mean(values, seed=1)


def test_clusters_of_copies_are_worth_one_document_each():
    single = sample(40, 0.1)
    copied = {(document, copy): score for document, score in single.items() for copy in range(5)}
    clusters = {document: document[0] for document in copied}
    alone, clustered, naive = bootstrap_mean(single), bootstrap_mean(copied, clusters), bootstrap_mean(copied)
    assert clustered.num_documents == 200
    assert clustered.num_clusters == 40
    assert clustered.mean == pytest.approx(alone.mean)
    assert clustered.percentile.low == pytest.approx(alone.percentile.low)
    assert clustered.bca.high == pytest.approx(alone.bca.high)
    assert clustered.p_value == alone.p_value
    assert clustered.minimum_detectable_effect == pytest.approx(alone.minimum_detectable_effect)
    assert naive.p_value < alone.p_value
    width = alone.percentile.high - alone.percentile.low
    assert naive.percentile.high - naive.percentile.low < 0.6 * width


def test_p_values_hold_their_level_under_the_null_hypothesis():
    runs = 200
    p_values = [bootstrap_mean(sample(50, seed=seed), resamples=999).p_value for seed in range(runs)]
    rejected = sum(p <= 0.05 for p in p_values)
    assert 2 <= rejected <= 24
    # About half are below one half.
    assert 75 <= sum(p <= 0.5 for p in p_values) <= 125


def test_pairing_is_by_document():
    reference = {"a": 0.2, "b": 0.9, "c": 0.5}
    candidate = {"c": 0.6, "a": 0.1, "b": 0.9}
    assert paired_differences(candidate, reference) == pytest.approx({"a": -0.1, "b": 0.0, "c": 0.1})
    assert paired_bootstrap(candidate, reference).mean == pytest.approx(0)
    with pytest.raises(ValueError, match=r"different documents \(3 and 2; on one side only: c\)"):
        paired_bootstrap(candidate, {"a": 0.2, "b": 0.9})


def test_equal_sides_differ_by_nothing():
    estimate = paired_bootstrap(sample(20), sample(20))
    assert (estimate.mean, estimate.p_value, estimate.minimum_detectable_effect) == (0, 1, 0)
    assert estimate.percentile == estimate.bca
    assert (estimate.bca.low, estimate.bca.high) == (0, 0)


def test_few_documents_prove_nothing():
    """One or two documents always agree in sign; flipping signs could not give a smaller p."""
    assert bootstrap_mean({0: 0.3}).p_value == 1
    assert bootstrap_mean({0: 0.3, 1: 0.3}).p_value == 0.5
    assert bootstrap_mean({0: 0.3, 1: 0.4}).p_value == 0.5
    assert bootstrap_mean(dict.fromkeys(range(30), 0.3)).p_value == 2 / 10_001


@pytest.mark.parametrize(
    ("values", "clusters", "message"),
    [
        ({}, None, "no documents"),
        ({0: math.nan, 1: 1.0}, None, "Document 0 has the score nan"),
        ({0: 1.0, 1: 2.0}, {0: "x"}, "Document 1 has no cluster"),
    ],
)
def test_unusable_scores_are_refused(values, clusters, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_mean(values, clusters)


def test_holm_by_hand():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert holm({}) == {}


def test_detectable_effect_is_found_at_the_promised_rate():
    values = sample(60)
    effect = minimum_detectable_effect(values)
    spread = np.std(list(values.values()), ddof=1)
    rng = np.random.default_rng(1)
    found = [stats.ttest_1samp(rng.normal(effect, spread, 60), 0).pvalue < 0.05 for _ in range(1000)]
    assert 0.76 < np.mean(found) < 0.84
    assert effect > minimum_detectable_effect(sample(240))
    assert math.isnan(minimum_detectable_effect({0: 1.0}))
