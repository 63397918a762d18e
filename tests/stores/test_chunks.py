"""Chunk retrieval: digests, scores, and what lands in the slots."""

from __future__ import annotations

import pytest
import torch

from kvcomp_eval.stores.chunks import GROUP_RULES, INDEXES, ChunkRetriever, ChunkSpec, build_index, chunk_scores
from kvcomp_eval.stores.slots import Slots

# One chunk of three keys, as in the published examples of ArkVale and Quest.
ARKVALE = torch.tensor([[[[0.0, 0], [1, 0], [4, 0]]]])
QUEST = torch.tensor([[[[1.0, 2, 3, 4], [0, -1, 5, -2]]]])


def logit(keys, query, kind):
    """Raw score of the only chunk, for one query head."""
    index = build_index(keys, kind)
    return chunk_scores(torch.tensor([[query]]), index, 1.0, "mean_logit").item()


@pytest.mark.parametrize(("kind", "expected"), [("mean", 5 / 3), ("minmax", 4.0), ("cuboid", 11 / 3)])
def test_digests_of_three_keys(kind, expected):
    assert logit(ARKVALE, [1.0, 1.0], kind) == pytest.approx(expected, abs=1e-5)


def test_box_bound_is_above_every_inner_product():
    assert logit(QUEST, [1.0, -2, 0, 3], "minmax") == pytest.approx(15)
    torch.manual_seed(0)
    keys, query = torch.randn(1, 50, 4, 8), torch.randn(1, 1, 8)
    bound = chunk_scores(query, build_index(keys, "minmax"), 1.0, "mean_logit")
    exact = (keys @ query[0, 0]).amax(-1)
    assert (bound >= exact - 1e-5).all()


@pytest.mark.parametrize("kind", INDEXES)
def test_single_key_chunks_rank_as_exact_attention(kind):
    torch.manual_seed(0)
    keys, query = torch.randn(1, 40, 1, 8), torch.randn(1, 1, 8)
    scores = chunk_scores(query, build_index(keys, kind), 0.5, "max_softmax")
    exact = (keys[:, :, 0] @ query[0, 0] * 0.5).softmax(-1)
    torch.testing.assert_close(scores, exact)


@pytest.mark.parametrize("kind", INDEXES)
def test_chunk_of_equal_keys_scores_as_that_key(kind):
    key = torch.tensor([0.3, -1.2, 2.0])
    assert logit(key.expand(1, 1, 8, 3), [1.0, 2.0, 0.5], kind) == pytest.approx(-1.1, abs=1e-5)


def test_group_rules_differ_and_agree_for_one_query_head():
    torch.manual_seed(0)
    index = build_index(torch.randn(2, 30, 4, 8), "mean")
    queries = torch.randn(2, 3, 8)
    weights = (queries @ index[0]).softmax(-1)
    torch.testing.assert_close(chunk_scores(queries, index, 1.0, "max_softmax"), weights.amax(1))
    torch.testing.assert_close(chunk_scores(queries, index, 1.0, "mean_softmax"), weights.mean(1))
    one = [chunk_scores(queries[:, :1], index, 1.0, rule).argsort(-1) for rule in GROUP_RULES]
    assert torch.equal(one[0], one[1])
    assert torch.equal(one[0], one[2])


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("offload", [True, False])
def test_refresh_copies_the_best_chunks_into_the_slots(heads, offload):
    torch.manual_seed(0)
    keys, values = torch.randn(heads, 40, 8), torch.randn(heads, 40, 8)
    spec = ChunkSpec(num_chunks=10, retrieved=3, chunk_size=4, offload=offload)
    retriever = ChunkRetriever(spec, keys, values)
    slots = Slots.allocate(heads, 12 + 5, 4, keys)
    slots.keys.zero_()
    queries = torch.randn(heads, 2, 8)
    retriever.refresh(queries, 0.3, slots)
    means = keys.unflatten(1, (10, 4)).mean(2)
    wanted = (queries @ means.transpose(1, 2) * 0.3).softmax(-1).amax(1).topk(3).indices
    for head in range(heads):
        assert set(retriever.chosen[head].tolist()) == set(wanted[head].tolist())
        rows = (retriever.chosen[head][:, None] * 4 + torch.arange(4)).flatten()
        assert torch.equal(slots.keys[head, :12], keys[head, rows])
        assert torch.equal(slots.values[head, :12], values[head, rows])
        assert not slots.keys[head, 12:].any()


def test_bytes_are_counted_where_the_chunks_wait():
    keys = torch.randn(2, 40, 8)
    on_host = ChunkRetriever(ChunkSpec(10, 3, 4, offload=True), keys, keys)
    on_device = ChunkRetriever(ChunkSpec(10, 3, 4, offload=False), keys, keys)
    pool = 2 * 2 * 40 * 8 * 4
    assert (on_host.host_bytes, on_host.device_bytes) == (pool, 0)
    assert (on_device.host_bytes, on_device.device_bytes) == (0, pool)
    assert on_host.index_bytes == 2 * 10 * 8 * 4
