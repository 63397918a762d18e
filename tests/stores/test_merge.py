"""Merging: the vectors of section 6.8 of the static-methods specification."""

from __future__ import annotations

import pytest
import torch

from kvcomp_eval.stores import merge
from kvcomp_eval.stores.heads import HeadPlan, HeadStore
from kvcomp_eval.stores.merge import Merge, nearest

KEYS = torch.tensor([[2.0, 1], [1, 0], [1, 3], [0, 1], [4, 0]])
VALUES = torch.tensor([[1.0, 1], [10, 0], [2, 2], [0, 10], [4, 0]])
KEPT = torch.tensor([1, 3])


@pytest.mark.parametrize(
    ("how", "keys", "values"),
    [
        (Merge("averaged"), [[2.333333, 0.333333], [0.5, 2]], [[5, 0.333333], [1, 6]]),
        (Merge("pivotal"), [[1.666667, 0.166667], [0.25, 1.5]], [[7.5, 0.166667], [0.5, 8]]),
        (
            Merge("weighted"),
            [[2.262952, 0.298142], [0.474342, 1.923025]],
            [[4.964809, 0.298142], [0.948683, 5.948683]],
        ),
        (Merge("averaged", filtered=True), [[2.5, 0], [0.5, 2]], [[7.0, 0], [1, 6]]),
    ],
)
@pytest.mark.parametrize("block", [1, 1024])
def test_vectors(monkeypatch, how, keys, values, block):
    monkeypatch.setattr(merge, "_EVICTED_BLOCK", block)
    merged_keys, merged_values = how(KEYS, VALUES, KEPT)
    torch.testing.assert_close(merged_keys, torch.tensor(keys), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(merged_values, torch.tensor(values), atol=1e-5, rtol=1e-5)


def test_assignment():
    similarity, target = nearest(KEYS[[0, 2, 4]], KEYS[KEPT])
    torch.testing.assert_close(similarity, torch.tensor([0.894427, 0.948683, 1.0]), atol=1e-5, rtol=0)
    assert target.tolist() == [0, 1, 0]


@pytest.mark.parametrize("rule", merge.MERGE_RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_evicted_changes_nothing(rule, dtype):
    keys, values = KEYS.to(dtype) / 3, VALUES.to(dtype) / 3
    merged_keys, merged_values = Merge(rule)(keys, values, torch.arange(5))
    assert torch.equal(merged_keys, keys)
    assert torch.equal(merged_values, values)


@pytest.mark.parametrize("rule", ["averaged", "pivotal"])
def test_copies_of_a_kept_key_leave_it_alone(rule):
    keys = torch.tensor([[1.0, 2], [1, 2], [-3, 1], [1, 2]])
    merged, _ = Merge(rule)(keys, keys, torch.tensor([0, 2]))
    torch.testing.assert_close(merged, keys[[0, 2]])


def test_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="merge rule 'mean' is not known; use one of averaged, pivotal, weighted"):
        Merge("mean")


def test_store_holds_the_merged_entries_behind_left_padding():
    keys = torch.cat([torch.full((2, 2), 99.0), KEYS])[None, None]
    values = torch.cat([torch.full((2, 2), 99.0), VALUES])[None, None]
    store = HeadStore([HeadPlan(KEPT, merge=Merge("averaged"))], keys, values, starts=[2], reserve=4)
    slots = store.groups[0].slots
    torch.testing.assert_close(slots.keys[0, :2], torch.tensor([[7 / 3, 1 / 3], [0.5, 2]]))
    torch.testing.assert_close(slots.values[0, :2], torch.tensor([[5, 1 / 3], [1, 6.0]]))
    assert store.kept_entries == 2
