"""MagicPIG's hashing, its probabilities, and its weighted attention."""

from __future__ import annotations

import math

import pytest
import torch

from kvcomp_eval.stores.magicpig import SampledAttention, agreeing_tables, hash_codes, sampling_probability
from kvcomp_eval.stores.slots import Slots


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("degrees", "expected"), [(0, 1.0), (30, 1.0), (60, 0.735551), (90, 0.009684)])
def test_probability_vector(degrees, expected):
    cosine = torch.tensor(math.cos(math.radians(degrees)), dtype=torch.float64)
    assert sampling_probability(cosine, 10, 150).item() == pytest.approx(expected, abs=1e-5)


def test_tables_that_agree_are_counted_per_query_and_key():
    asked = torch.tensor([[[1, 2, 3], [4, 5, 6]]])
    codes = torch.tensor([[[1, 4, 0], [2, 5, 2], [0, 6, 3]]])  # [1, tables, keys]
    assert agreeing_tables(asked, codes).tolist() == [[[2, 0, 2], [0, 3, 0]]]


def test_codes_are_the_sides_of_the_planes():
    planes = torch.tensor([[1.0, 0, -1, 0], [0, 1, 0, -1]])
    assert hash_codes(torch.tensor([[2.0, -1], [-1, 3]]), planes, 2).tolist() == [[1, 2], [2, 1]]


def test_frequencies_are_the_probabilities():
    """Over many draws, two tables agree as often as the formula says."""
    query, keys = drawn(1, 8), drawn(12, 8, seed=1) + 0.7 * drawn(1, 8)
    cosine = torch.cosine_similarity(query, keys)
    bits, tables, draws = 3, 6, 4000
    planes = drawn(8, draws * tables * bits, seed=2)
    agree = (hash_codes(query, planes, bits) == hash_codes(keys, planes, bits)).unflatten(1, (draws, tables))
    frequency = (agree.sum(-1) >= 2).float().mean(1)
    probability = sampling_probability(cosine, bits, tables)
    assert probability.max() - probability.min() > 0.3
    torch.testing.assert_close(frequency, probability, atol=0.04, rtol=0)


def make(bits, tables, heads=3, prefix=30, sinks=2, offload=True, counts_planes=True):
    keys, values = drawn(heads, sinks + prefix, 8) + 2, drawn(heads, sinks + prefix, 8, seed=1)
    spec = SampledAttention(prefix, sinks, tables, bits, offload, counts_planes, drawn(8, tables * bits, seed=2))
    slots = Slots.allocate(heads, sinks + 4, 4, keys)
    slots.keys.normal_(generator=torch.Generator().manual_seed(3))
    slots.values.normal_(generator=torch.Generator().manual_seed(4))
    return spec.build([spec] * heads, keys, values, slots), spec, slots, keys[:, sinks:], values[:, sinks:]


def test_attention_equals_a_dense_computation():
    """Token by token: which tables agree, u from the angle, and the weight exp(logit) / u."""
    bits, tables, scaling = 3, 8, 0.35
    retriever, spec, slots, keys, values = make(bits, tables)
    queries = 1.5 * drawn(3, 2, 8, seed=5)
    retriever.refresh(queries, scaling, slots)
    output = retriever.attend(queries, scaling, slots)
    samples = 0
    for head in range(3):
        mean = keys[head].mean(0)
        for group in range(2):
            query = queries[head, group]
            weights = [(query @ key * scaling).exp() for key in slots.keys[head, :6]]
            shown = list(slots.values[head, :6])
            for key, value in zip(keys[head], values[head], strict=True):
                sides = [(vector @ spec.planes > 0).view(tables, bits) for vector in (query, key - mean)]
                if (sides[0] == sides[1]).all(-1).sum() < 2:
                    continue
                angle = torch.acos(query @ (key - mean) / query.norm() / (key - mean).norm())
                p = (1 - angle / math.pi) ** bits
                u = 1 - (1 - p) ** tables - tables * p * (1 - p) ** (tables - 1)
                weights.append((query @ key * scaling).exp() / (u + 1e-4))
                shown.append(value)
                samples += 1
            weights = torch.stack(weights)
            expected = weights @ torch.stack(shown) / weights.sum()
            torch.testing.assert_close(output[head, group], expected, atol=1e-4, rtol=1e-4)
    assert 20 < samples < 160
    assert retriever.reads_per_step == 2 * samples


def test_everything_sampled_is_full_attention():
    retriever, _, slots, keys, values = make(bits=1, tables=200)
    queries = drawn(3, 2, 8, seed=5)
    whole = torch.cat([slots.keys[:, :6], keys], dim=1), torch.cat([slots.values[:, :6], values], dim=1)
    expected = (queries @ whole[0].transpose(1, 2) * 0.35).softmax(-1) @ whole[1]
    torch.testing.assert_close(retriever.attend(queries, 0.35, slots), expected, atol=1e-3, rtol=1e-3)
    assert retriever.reads_per_step == 2 * 3 * 2 * 30


@pytest.mark.parametrize("offload", [True, False])
def test_bytes_are_the_mean_key_the_planes_and_the_pool(offload):
    retriever, *_ = make(3, 8, offload=offload)
    assert retriever.index_bytes == 4 * (3 * 8 + 8 * 3 * 8)
    pool = 3 * 30 * (4 * (8 + 8 + 1) + 2 * 8)  # keys, values and lengths in float32, codes of 8 tables in int16
    assert (retriever.host_bytes, retriever.device_bytes) == ((pool, 0) if offload else (0, pool))
    assert make(3, 8, counts_planes=False)[0].index_bytes == 4 * 3 * 8
