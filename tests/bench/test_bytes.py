"""Realised bytes of HybridKV equal the accounting of its paper, to the byte (mid-size backbone, 4k tokens)."""

from __future__ import annotations

import pytest
import torch

from kvcomp_eval.bench.backbone import DTYPES, MID_SIZE, build_backbone
from kvcomp_eval.bench.contenders import make_contenders
from kvcomp_eval.bench.decode import fill_caches
from kvcomp_eval.budgets.uniform import entries_per_head

_LENGTH = 4096
_RATIO = 0.1
_WINDOW = 32
_CHUNK = 8


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_hybridkv_holds_the_bytes_of_the_formula(dtype: str) -> None:
    model = build_backbone(MID_SIZE, DTYPES[dtype], _LENGTH + 1)
    (contender,) = make_contenders(["hybridkv"], _RATIO, model)
    fill_caches(model, [contender], MID_SIZE, _LENGTH, DTYPES[dtype], steps=1)
    cache = contender.cache
    report = cache.report()
    heads = MID_SIZE.layers * MID_SIZE.kv_heads
    vector = MID_SIZE.head_dim * torch.tensor([], dtype=DTYPES[dtype]).element_size()
    num_chunks = (_LENGTH - _WINDOW) // _CHUNK
    tail = _LENGTH - num_chunks * _CHUNK

    # The plan: budgets of static heads, and m chunks for each dynamic head.
    (static,) = cache.details["static"]
    (budgets,) = cache.details["budgets"]
    num_dynamic = static.count(False)
    assert num_dynamic == heads // 2
    retrieved = budgets["chunks"]
    assert 0 < retrieved < num_chunks
    total = int(_RATIO * _LENGTH * heads)
    static_entries = total - num_dynamic * (_CHUNK * retrieved + tail)

    # The measurement: every prompt slot and every index really allocated.
    slots = [group.slots for layer in cache.packed_layers for group in layer.store.groups]
    indexes = [
        group.retriever._index for layer in cache.packed_layers for group in layer.store.groups if group.retriever
    ]
    entries = sum(
        part[:, : slot.prompt_slots].numel() * part.element_size()
        for slot in slots
        for part in (slot.keys, slot.values)
    )
    index = sum(part.untyped_storage().nbytes() for parts in indexes for part in parts)

    per_dynamic = 2 * (_CHUNK * retrieved + tail) * vector + num_chunks * vector
    assert entries + index == 2 * static_entries * vector + num_dynamic * per_dynamic
    assert report.device_bytes == entries + index
    assert report.overhead_bytes == 0
    assert report.host_bytes == num_dynamic * 2 * num_chunks * _CHUNK * vector
    assert report.full_bytes == 2 * heads * _LENGTH * vector
    assert entries == 2 * total * vector <= _RATIO * report.full_bytes
    # One row more per head was reserved for the token to come, and nothing else.
    assert report.generated_bytes == 2 * heads * vector


def test_nothing_of_the_full_prompt_stays_alive() -> None:
    model = build_backbone(MID_SIZE, DTYPES["bf16"], _LENGTH + 1)
    (contender,) = make_contenders(["snapkv"], _RATIO, model)
    fill_caches(model, [contender], MID_SIZE, _LENGTH, DTYPES["bf16"], steps=1)
    report = contender.cache.report()
    storages = {
        part.untyped_storage().data_ptr(): part.untyped_storage().nbytes()
        for layer in contender.cache.packed_layers
        for group in layer.store.groups
        for part in (group.slots.keys, group.slots.values)
    }
    assert sum(storages.values()) == report.device_bytes + report.generated_bytes
    vectors = 2 * MID_SIZE.layers * MID_SIZE.kv_heads
    assert report.device_bytes == vectors * entries_per_head(_LENGTH, _RATIO, None, _WINDOW) * MID_SIZE.head_dim * 2
