"""ShadowKV's factors, landmarks, outliers and what lands in the slots."""

from __future__ import annotations

import pytest
import torch

from kvcomp_eval.inputs import Rotation
from kvcomp_eval.stores.shadowkv import LowRankKeys, LowRankRetrieval, outlier_chunks
from kvcomp_eval.stores.slots import Slots

HEADS, DIM, CHUNKS, SIZE = 2, 8, 10, 4
COVERED = CHUNKS * SIZE


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def turn(queries, keys, cos, sin):
    """Rotation of pairs (i, i + D/2), written out."""

    def one(vectors):
        first, second = vectors.chunk(2, -1)
        half = DIM // 2
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        return torch.cat(
            [first * c[..., :half] - second * s[..., :half], second * c[..., half:] + first * s[..., half:]], dim=-1
        )

    return one(queries), one(keys)


def rotation(scale=1.0, seed=3):
    """Tokens at arbitrary angles, as M-RoPE gives image tokens; models such as YaRN's scale them."""
    angles = 3 * drawn(1, COVERED, DIM // 2, seed=seed)
    angles = torch.cat([angles, angles], dim=-1)
    return Rotation(turn, scale * angles.cos(), scale * angles.sin())


def make(rank, samples=1, offload=True, candidates=None, counts_rotation=True, size=SIZE):
    shared = [rotation(seed=3 + sample) for sample in range(samples)]
    keys, values = drawn(HEADS * samples, COVERED, DIM), drawn(HEADS * samples, COVERED, DIM, seed=1)
    chunks = COVERED // size
    members = [
        LowRankRetrieval(
            chunks, 3, size, rank, HEADS, offload, counts_rotation, shared[row // HEADS],
            torch.arange(chunks) if candidates is None else candidates,
        )
        for row in range(HEADS * samples)
    ]  # fmt: skip
    slots = Slots.allocate(len(keys), 3 * size + 2, 4, keys)
    return members[0].build(members, keys, values, slots), slots, keys, values


@pytest.mark.parametrize("scale", [1.0, 1.3])
def test_rotation_is_undone(scale):
    vectors = drawn(1, HEADS, COVERED, DIM)
    turned = rotation(scale).turn(vectors)
    assert (turned - vectors).abs().max() > 1
    torch.testing.assert_close(rotation(scale).undo(turned), vectors, atol=1e-5, rtol=1e-5)


def test_factors_are_the_best_of_their_rank():
    keys = drawn(HEADS, COVERED, DIM)
    rows = torch.arange(COVERED).expand(HEADS, -1)
    joint = keys.transpose(0, 1).flatten(1)
    left, singular, right = torch.linalg.svd(joint, full_matrices=False)
    for rank in (1, 5, 16):
        rebuilt = LowRankKeys.of(keys, rank, torch.float32).rebuild(rows)
        best = (left[:, :rank] * singular[:rank]) @ right[:rank]
        torch.testing.assert_close(rebuilt.transpose(0, 1).flatten(1), best, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("offload", [True, False])
def test_full_rank_rebuilds_the_rotated_keys_of_the_best_chunks(samples, offload):
    retriever, slots, keys, values = make(HEADS * DIM, samples, offload)
    queries = drawn(HEADS * samples, 3, DIM, seed=2)
    retriever.refresh(queries, 0.35, slots)
    means = keys.unflatten(1, (CHUNKS, SIZE)).mean(2)
    wanted = (queries @ means.transpose(1, 2) * 0.35).softmax(-1).amax(1).topk(3).indices
    for head, rows in enumerate(retriever.positions()):
        assert set((rows // SIZE).tolist()) == set(wanted[head].tolist())
        torch.testing.assert_close(slots.keys[head, : 3 * SIZE], keys[head, rows], atol=1e-4, rtol=1e-4)
        assert torch.equal(slots.values[head, : 3 * SIZE], values[head, rows])


def test_single_token_chunks_are_the_exact_top():
    retriever, slots, keys, _ = make(HEADS * DIM, size=1)
    queries = drawn(HEADS, 1, DIM, seed=2)
    retriever.refresh(queries, 0.35, slots)
    exact = (queries @ keys.transpose(1, 2))[:, 0].topk(3).indices
    assert torch.equal(retriever.positions().sort(-1).values, exact.sort(-1).values)


def test_outliers_are_the_chunks_unlike_their_mean_and_never_retrieved():
    keys = torch.ones(1, 12, 2)
    keys[0, 5] = torch.tensor([-1.0, 1.0])
    keys[0, 9] = torch.tensor([-1.0, -1.0])
    assert outlier_chunks(keys, 4, 1).tolist() == [[2]]
    assert outlier_chunks(keys, 4, 2).tolist() == [[1, 2]]
    left = torch.tensor([0, 1, 3, 8])
    retriever, slots, *_ = make(5, candidates=left)
    for seed in range(5):
        retriever.refresh(3 * drawn(HEADS, 2, DIM, seed=seed), 0.35, slots)
        assert set((retriever.positions() // SIZE).flatten().tolist()) <= set(left.tolist())


@pytest.mark.parametrize("samples", [1, 2])
def test_reads_and_bytes_are_those_of_the_table(samples):
    """Per KV head ``Np R / (Hkv D) + Np / chunk`` vectors; the table leaves out R right factors and the rotation."""
    rank = 4
    retriever, *_ = make(rank, samples)
    per_head = COVERED * rank / (HEADS * DIM) + COVERED / SIZE + rank
    rotation = 2 * COVERED * DIM * 4
    assert retriever.index_bytes == samples * (HEADS * per_head * DIM * 4 + rotation)
    assert retriever.reads_per_step == samples * HEADS * 3 * SIZE
    assert retriever.host_bytes == samples * HEADS * COVERED * DIM * 4
    assert retriever.device_bytes == 0
    shared = make(rank, samples, counts_rotation=False)[0]
    assert retriever.index_bytes - shared.index_bytes == samples * rotation
