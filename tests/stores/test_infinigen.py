"""InfiniGen's skew, partial keys and what lands in the slots."""

from __future__ import annotations

import pytest
import torch

from kvcomp_eval.stores.infinigen import PartialKeyRetrieval, partial_skew
from kvcomp_eval.stores.slots import Slots


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make(keys, skew, selected=4, offload=True):
    heads, prefix, _ = keys.shape
    members = [PartialKeyRetrieval(selected, prefix, offload, columns) for columns in skew]
    slots = Slots.allocate(heads, selected + 2, 4, keys)
    return members[0].build(members, keys, 2 * keys, slots), slots


def test_skew_is_orthonormal_and_keeps_every_inner_product():
    queries, keys = drawn(3, 50, 8), drawn(3, 20, 8, seed=1)
    skew = partial_skew(queries, 8)
    torch.testing.assert_close(skew.transpose(1, 2) @ skew, torch.eye(8).expand(3, 8, 8), atol=1e-5, rtol=0)
    exact = queries @ keys.transpose(1, 2)
    torch.testing.assert_close((queries @ skew) @ (keys @ skew).transpose(1, 2), exact, atol=1e-4, rtol=1e-4)


def test_partial_skew_keeps_the_columns_that_carry_the_queries():
    """Queries in a plane: two columns are enough."""
    plane = torch.linalg.qr(drawn(8, 8)).Q[:, :2]
    queries = drawn(1, 50, 2, seed=1) @ plane.T
    keys = drawn(1, 20, 8, seed=2)
    skew = partial_skew(queries, 2)
    exact = queries @ keys.transpose(1, 2)
    torch.testing.assert_close((queries @ skew) @ (keys @ skew).transpose(1, 2), exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("offload", [True, False])
def test_all_columns_fetch_the_exact_top_whatever_their_order(offload):
    keys, queries = drawn(3, 30, 8), drawn(3, 2, 8, seed=1)
    skew = partial_skew(drawn(3, 50, 8, seed=2), 8)
    retriever, slots = make(keys, skew, offload=offload)
    retriever.refresh(queries, 0.35, slots)
    permuted, other = make(keys, skew[:, :, torch.randperm(8)], offload=offload)
    permuted.refresh(queries, 0.35, other)
    wanted = (queries @ keys.transpose(1, 2) * 0.35).softmax(-1).mean(1).topk(4).indices
    for head in range(3):
        chosen = retriever.positions()[head]
        assert set(chosen.tolist()) == set(wanted[head].tolist()) == set(permuted.positions()[head].tolist())
        assert torch.equal(slots.keys[head, :4], keys[head, chosen])
        assert torch.equal(slots.values[head, :4], 2 * keys[head, chosen])


def test_reads_and_bytes_are_those_of_the_table():
    """Of Np keys of D columns, a share d'/D on the device, and the skew's own d' columns; 2c vectors a step."""
    keys = drawn(2, 40, 16)
    retriever, _ = make(keys, partial_skew(drawn(2, 50, 16), 4))
    vector = 16 * 4
    assert retriever.index_bytes == 2 * (40 / 4 + 4) * vector
    assert retriever.reads_per_step == 2 * 2 * 4
    assert (retriever.host_bytes, retriever.device_bytes) == (2 * 2 * 40 * vector, 0)
    on_device, _ = make(keys, partial_skew(drawn(2, 50, 16), 4), offload=False)
    assert (on_device.host_bytes, on_device.device_bytes) == (0, 2 * 2 * 40 * vector)
