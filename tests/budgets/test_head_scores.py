"""SparseMM's allocation and the files that it reads: golden vectors, exact totals, clear refusals."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcomp_eval.budgets.head_scores import HeadScores, head_score_budgets

TABLE = np.array([[1, 3, 0, 0], [2, 2, 1, 1]])  # two layers of four query heads, two KV heads
SHARES = np.array([[0.4, 0.0], [0.4, 0.2]])


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_query_heads_are_summed_over_their_group(tmp_path):
    scores = HeadScores.read(write(tmp_path / "heads.json", {"scores": TABLE.tolist(), "model": "m", "pages": 7}))
    assert scores.source == {"model": "m", "pages": 7}
    assert scores.per_kv_head(2, 4, 2) == pytest.approx(SHARES)


@pytest.mark.parametrize(
    ("most", "official", "expected"),
    [
        (1000, True, [[49, 3], [49, 26]]),  # 127 of 128
        (1000, False, [[50, 3], [49, 26]]),
        (40, True, [[40, 3], [40, 26]]),  # 18 lost
        (40, False, [[40, 8], [40, 40]]),
    ],
)
def test_vectors(most, official, expected):
    assert head_score_budgets(SHARES, 32, most, 0.1, official).tolist() == expected


@pytest.mark.parametrize(("shares", "ratio"), [(np.full((3, 2), 1 / 6), 0.1), (np.full((3, 2), 1 / 6), 0.0)])
@pytest.mark.parametrize("official", [True, False])
def test_equal_scores_give_equal_budgets(shares, ratio, official):
    assert (head_score_budgets(shares, 32, 50, ratio, official) == 32).all()


@pytest.mark.parametrize("official", [True, False])
def test_without_a_scored_part_all_heads_get_the_same(official):
    assert (head_score_budgets(SHARES, 32, 50, 1.0, official) == 32).all()


shapes = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10_000))


def random_shares(layers, heads, seed):
    weights = np.random.default_rng(seed).exponential(size=(layers, heads)) ** 3
    return weights / weights.sum()


@settings(deadline=None)
@given(shapes, st.integers(0, 300), st.integers(0, 500), st.floats(0, 1))
def test_total_is_exact_within_bounds(shape, base, beyond, ratio):
    budgets = head_score_budgets(random_shares(*shape), base, base + beyond, ratio)
    assert budgets.sum() == budgets.size * base
    assert (budgets >= int(base * ratio)).all()
    assert (budgets <= base + beyond).all()


@settings(deadline=None)
@given(shapes, st.integers(1, 300), st.integers(0, 500), st.floats(0, 1))
def test_a_higher_score_never_gets_less(shape, base, beyond, ratio):
    shares = random_shares(*shape)
    budgets = head_score_budgets(shares, base, base + beyond, ratio).ravel()
    ordered = budgets[np.argsort(shares.ravel(), kind="stable")]
    assert all(low <= high for low, high in pairwise(ordered))


@settings(deadline=None)
@given(shapes, st.integers(1, 60), st.floats(0, 1))
def test_a_larger_budget_takes_from_no_head(shape, most, ratio):
    """But for one entry: largest remainders may move the unit that they hand out."""
    shares = random_shares(*shape)
    rows = [head_score_budgets(shares, base, most, ratio) for base in range(most + 1)]
    assert all((more - less >= -1).all() for less, more in pairwise(rows))
    assert (rows[-1] == most).all()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"scores": "high"}', '{"scores": [[1, 2], [3]]}'])
def test_files_of_another_kind_are_refused(tmp_path, content):
    with pytest.raises(ValueError, match=r"does not hold a JSON object with a table.*kvcomp-eval heads"):
        HeadScores.read(write(tmp_path / "heads.json", content))


@pytest.mark.parametrize("scores", [[1, 2], [[1.0, -1.0]], [[0.0, 0.0]], [[1.0, float("nan")]], []])
def test_useless_scores_are_refused(tmp_path, scores):
    with pytest.raises(ValueError, match=r"finite, non-negative.*kvcomp-eval heads"):
        HeadScores.read(write(tmp_path / "heads.json", {"scores": scores}))


def test_missing_scores_name_the_command():
    with pytest.raises(ValueError, match=r"give head_scores=heads.json.*`kvcomp-eval heads --model"):
        HeadScores.read(None)
    with pytest.raises(ValueError, match=r"'nowhere.json' is not a file.*`kvcomp-eval heads --model"):
        HeadScores.read("nowhere.json")


@pytest.mark.parametrize("model", [(2, 8, 2), (3, 4, 2), (4, 2, 1)])
def test_scores_of_another_model_are_refused(model):
    with pytest.raises(ValueError, match=r"2 layers of 4 query heads, but the model has .*kvcomp-eval heads"):
        HeadScores(TABLE.astype(float), {}).per_kv_head(*model)
