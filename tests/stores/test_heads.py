"""Packed heads: grouping, ragged attention, growth, and measured bytes."""

from __future__ import annotations

import pytest
import torch

from kvcomp_eval.stores.chunks import ChunkSpec
from kvcomp_eval.stores.heads import HeadPlan, HeadStore, group_heads


def plans_of(lengths, prompt):
    generator = torch.Generator().manual_seed(0)
    return [HeadPlan(torch.randperm(prompt, generator=generator)[:n].sort().values) for n in lengths]


def expected_attention(query, keys, values, kept, generated_keys, generated_values, scaling):
    """Plain attention of one head group over its kept and the generated entries."""
    keys, values = torch.cat([keys[kept], generated_keys]), torch.cat([values[kept], generated_values])
    return (query @ keys.T * scaling).softmax(-1) @ values


@pytest.mark.parametrize(
    ("batch", "heads", "lengths"),
    [
        (1, 2, [7, 7]),
        (1, 4, [7, 3, 7, 12]),
        (2, 2, [5, 9, 9, 2]),
        (17, 4, [5 + row % 9 for row in range(68)]),
    ],
    ids=["uniform", "ragged", "batch", "many heads, padded groups"],
)
def test_steps_attend_to_kept_and_generated_entries(batch, heads, lengths):
    torch.manual_seed(0)
    group, dim, prompt = 3, 8, 20
    keys, values = torch.randn(batch, heads, prompt, dim), torch.randn(batch, heads, prompt, dim)
    plans = plans_of(lengths, prompt)
    store = HeadStore(plans, keys, values, [0] * batch, reserve=1)
    tail_keys, tail_values = torch.randn(batch, heads, 70, dim), torch.randn(batch, heads, 70, dim)
    for step in range(70):
        query = torch.randn(batch, heads * group, 1, dim)
        output = store.step(query, tail_keys[:, :, step : step + 1], tail_values[:, :, step : step + 1], 0.4)
        if step not in (0, 1, 2, 69):
            continue
        for row, plan in enumerate(plans):
            sample, head = divmod(row, heads)
            expected = expected_attention(
                query[sample, head * group : (head + 1) * group, 0],
                keys[sample, head],
                values[sample, head],
                plan.kept,
                tail_keys[sample, head, : step + 1],
                tail_values[sample, head, : step + 1],
                0.4,
            )
            torch.testing.assert_close(output[sample, 0, head * group : (head + 1) * group], expected)


def test_equal_lengths_share_a_call_and_order_is_kept():
    groups = group_heads(plans_of([4, 9, 4, 9, 1], 20))
    assert groups == [[0, 2], [1, 3], [4]]


def test_many_heads_are_padded_within_the_bound():
    lengths = [10 + 7 * (row % 13) for row in range(80)]
    groups = group_heads(plans_of(lengths, 200))
    assert sorted(row for group in groups for row in group) == list(range(80))
    for group in groups:
        sizes = [lengths[row] for row in group]
        assert max(sizes) <= 1.3 * min(sizes)
        assert group == sorted(group)


def test_retrieving_heads_never_share_a_call_with_static_ones():
    spec = ChunkSpec(num_chunks=4, retrieved=2, chunk_size=2)
    static, retrieving = HeadPlan(torch.arange(6)), HeadPlan(torch.arange(8, 10), spec)
    assert group_heads([static, retrieving, static, retrieving]) == [[0, 2], [1, 3]]


def test_bytes_are_those_of_the_storages():
    keys = torch.randn(1, 4, 50, 8)
    spec = ChunkSpec(num_chunks=10, retrieved=3, chunk_size=4)
    tail = HeadPlan(torch.arange(40, 50), spec)
    store = HeadStore([HeadPlan(torch.arange(12)), tail, HeadPlan(torch.arange(9)), tail], keys, keys, [0], reserve=16)
    entry = 2 * 8 * 4
    assert sum(group.slots.prompt_bytes for group in store.groups) == (12 + 9 + 2 * (3 * 4 + 10)) * entry
    assert sum(group.slots.generated_bytes for group in store.groups) == 4 * 16 * entry
    assert store.kept_entries == 12 + 9 + 2 * (3 * 4 + 10)
    assert store.reads_per_step == 2 * 2 * 3 * 4


def test_packing_keeps_no_reference_to_the_prompt():
    import weakref

    keys = torch.randn(1, 2, 50, 8)
    watch = weakref.ref(keys)
    store = HeadStore(plans_of([5, 9], 50), keys, keys, [0], reserve=4)
    del keys
    assert watch() is None
    assert store.kept_entries == 14
