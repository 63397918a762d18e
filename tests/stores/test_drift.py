"""RCR's detector, drift, controller and merge: the vectors and invariants of the specification's section 2."""

from __future__ import annotations

import math

import pytest
import torch

from kvcomp_eval.stores.controller import RateController
from kvcomp_eval.stores.drift import Detector, DriftRetrieval, PrefixAttention, log_sum_exp
from kvcomp_eval.stores.slots import Slots

CPU = torch.device("cpu")


def controller(**changes):
    settings = {"tau": 0.03, "rho": 0.4, "gain": 0.05, "num_layers": 1, "update": "layer", "device": CPU}
    return RateController(**settings | changes)


def run(control, triggers):
    for trigger in triggers:
        control.observe(torch.tensor(float(trigger)))
    return control


def test_threshold_vector():
    control = run(controller(), [1, 1, 0, 1, 0])
    assert control.threshold.item() == pytest.approx(0.0315381329, rel=1e-5)


def test_rate_and_threshold_obey_the_law():
    generator = torch.Generator().manual_seed(0)
    triggers = (torch.rand(1000, generator=generator) < 0.43).tolist()
    control = run(controller(), triggers)
    refreshed = sum(triggers)
    assert control.threshold.item() == pytest.approx(0.03 * math.exp(0.05 * (refreshed - 400)), rel=1e-3)
    law = 0.4 + math.log(control.threshold.item() / 0.03) / (0.05 * 1000)
    assert control.rate == pytest.approx(law, abs=1e-4)


def test_step_update_moves_once_a_token_by_the_share_of_layers():
    control = controller(num_layers=4, update="step")
    run(control, [1, 0, 1])
    assert control.threshold.item() == pytest.approx(0.03)
    run(control, [1])
    assert control.threshold.item() == pytest.approx(0.03 * math.exp(0.05 * (0.75 - 0.4)))


def test_full_rate_makes_the_threshold_fall_and_no_gain_keeps_it():
    assert run(controller(rho=1.0), [1, 0, 1, 0]).threshold.item() < 0.03
    assert run(controller(gain=0.0), [1, 1, 1]).threshold.item() == pytest.approx(0.03)
    assert run(controller(tau=-1.0), [1, 1]).threshold.item() == -1
    assert run(controller(tau=math.inf), [0, 0]).threshold.item() == math.inf


KEYS = torch.tensor([[[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 1, 0, 0]]])
QUERY = torch.tensor([[[1.0, 2, 0, 0]]]) / 2
KEPT = [0, 2]


def drift_of(rank):
    """Kept {0, 2} have exact logits; nothing stands outside the prefix."""
    logits = Detector.of(KEYS, rank).logits(QUERY)
    exact = torch.matmul(QUERY, KEYS.transpose(1, 2))
    logits[:, :, KEPT] = exact[:, :, KEPT]
    mass = PrefixAttention.of(logits.clone(), torch.full((1, 1, 1), float("-inf"))).mass
    return logits, mass, (mass.sum(1) - mass[:, KEPT].sum(1)).item()


@pytest.mark.parametrize(("rank", "drift"), [(0, 0.731059), (1, 0.713572), (3, 0.731059), (4, 0.731059)])
def test_drift_vector(rank, drift):
    logits, mass, measured = drift_of(rank)
    assert measured == pytest.approx(drift, abs=1e-5)
    if rank == 1:
        assert logits[0, 0, [1, 3]].tolist() == pytest.approx([0.75, 1.5], abs=1e-5)
    else:
        torch.testing.assert_close(mass[0], torch.tensor([0.167405, 0.276004, 0.101536, 0.455054]), atol=1e-5, rtol=0)


def test_rescored_mass_is_that_of_a_softmax_over_all_tokens():
    generator = torch.Generator().manual_seed(0)
    approximate, exact = (4 * torch.randn(3, 2, size, generator=generator) for size in (30, 6))
    others = torch.randn(3, 2, 5, generator=generator)
    candidates = torch.stack([torch.randperm(30, generator=generator)[:6] for _ in range(3)])
    index = candidates.unsqueeze(1).expand(-1, 2, -1)
    whole = torch.cat([approximate.scatter(2, index, exact), others], dim=-1).softmax(-1).mean(1)
    mass = torch.cat([approximate, others], dim=-1).softmax(-1).mean(1)[:, :30]
    prefix = PrefixAttention.of(approximate, others.logsumexp(-1, keepdim=True))
    torch.testing.assert_close(prefix.mass, mass)
    torch.testing.assert_close(prefix.rescored(candidates, exact), whole.gather(1, candidates))


def test_log_sum_exp_of_extreme_values():
    values = torch.tensor([[-300.0, 0.0, 200.0], [5.0, 5.0, 5.0], [300.0, -300.0, 0.0]])
    torch.testing.assert_close(log_sum_exp(values), values.logsumexp(-1, keepdim=True))


def test_mass_of_extreme_logits_is_finite():
    logits = torch.tensor([[[200.0, -200.0, 0.0], [-300.0, -300.0, -300.0]]])
    prefix = PrefixAttention.of(logits.clone(), torch.tensor([[[0.0], [100.0]]]))
    torch.testing.assert_close(prefix.mass, torch.tensor([[0.5, 0.0, 0.0]]))
    candidates = torch.arange(3)[None]
    torch.testing.assert_close(prefix.rescored(candidates, logits), torch.tensor([[0.5, 0.0, 0.0]]))


@pytest.mark.parametrize("centred", [False, True])
def test_full_rank_detector_is_exact_and_the_centred_one_keeps_the_mean(centred):
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(3, 40, 8, generator=generator) + 5
    queries = torch.randn(3, 2, 8, generator=generator)
    exact = torch.matmul(queries, keys.transpose(1, 2))
    torch.testing.assert_close(Detector.of(keys, 8, centred).logits(queries), exact, atol=1e-4, rtol=1e-4)
    approximate = Detector.of(keys, 2, centred).logits(queries)
    if centred:
        torch.testing.assert_close(approximate.mean(-1), exact.mean(-1), atol=1e-4, rtol=1e-4)


def make_retriever(heads=2, samples=1, **changes):
    generator = torch.Generator().manual_seed(1)
    total, prefix, dim, selected = heads * samples, 30, 8, 4
    keys = torch.randn(total, prefix, dim, generator=generator)
    values = torch.randn(total, prefix, dim, generator=generator)
    start = {"tau": 0.6} | changes.pop("controller", {})
    controllers = [controller(**start) for _ in range(samples)]
    probe = changes.pop("probe", None)
    settings = {
        "selected": selected, "prefix": prefix, "candidates": 12, "rank": 3, "centred": False, "per_head": False,
        "branching": False, "num_kv_heads": heads, "offload": True, "layer": 0,
    } | changes  # fmt: skip
    members = [
        DriftRetrieval(**settings, probe=probe, initial=torch.arange(selected), controller=controllers[head // heads])
        for head in range(total)
    ]
    slots = Slots.allocate(total, selected + 2, 20, keys)
    slots.keys[:, selected : selected + 2] = torch.randn(total, 2, dim, generator=generator)
    slots.values[:, selected : selected + 2] = 0
    return members[0].build(members, keys, values, slots), slots, keys, values, controllers


def decode(retriever, slots, steps=12, samples=1):
    generator = torch.Generator().manual_seed(2)
    chosen = []
    for _ in range(steps):
        queries = 3 * torch.randn(len(slots.keys) // samples, 2, 8, generator=generator).repeat(samples, 1, 1)
        new = torch.randn(len(slots.keys) // samples, 8, generator=generator).repeat(samples, 1)
        slots.append(new, new)
        retriever.refresh(queries, 0.35, slots)
        chosen.append(retriever.chosen.clone())
    return torch.stack(chosen)


def test_slots_hold_what_was_chosen():
    retriever, slots, keys, values, (control,) = make_retriever()
    chosen = decode(retriever, slots)
    assert 0 < control.rate < 1
    assert (chosen[0] != chosen[-1]).any()
    for head in range(2):
        assert len(set(retriever.chosen[head].tolist())) == 4
        assert torch.equal(slots.keys[head, :4], keys[head, retriever.chosen[head]])
        assert torch.equal(slots.values[head, :4], values[head, retriever.chosen[head]])


def test_masked_merge_is_the_branching_version_bit_for_bit():
    masked, slots, *_ = make_retriever()
    branching, other, *_ = make_retriever(branching=True)
    assert torch.equal(decode(masked, slots), decode(branching, other))
    assert torch.equal(slots.keys[:, : slots.length], other.keys[:, : other.length])


def test_infinite_threshold_is_static_and_minus_one_refreshes_always():
    never, slots, *_ = make_retriever(controller={"tau": math.inf})
    assert (decode(never, slots) == torch.arange(4)).all()
    assert never.reads_per_step == 0
    always, slots, *_, (control,) = make_retriever(controller={"tau": -1.0})
    decode(always, slots)
    assert control.rate == 1
    assert always.reads_per_step == 2 * (12 + 4)


def test_exact_reselection_keeps_the_top_of_the_exact_mass():
    retriever, slots, keys, *_ = make_retriever(rank=0, controller={"tau": -1.0})
    queries = torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(5))
    slots.append(torch.zeros(2, 8), torch.zeros(2, 8))
    retriever.refresh(queries, 0.35, slots)
    everything = torch.cat([keys, slots.keys[:, 4 : slots.length]], dim=1)
    mass = (torch.matmul(queries, everything.transpose(1, 2)) * 0.35).softmax(-1).mean(1)[:, :30]
    for head in range(2):
        assert set(retriever.chosen[head].tolist()) == set(mass[head].topk(4).indices.tolist())
    assert retriever.reads_per_step == 2 * (30 + 4)
    assert retriever.index_bytes == 0


def test_index_bytes_are_the_projected_keys_and_the_basis():
    retriever, *_ = make_retriever()
    assert retriever.index_bytes == 2 * 4 * (3 * 30 + 3 * 8)
    assert retriever.host_bytes == 2 * 2 * 4 * 30 * 8


class Shares:
    """A probe that notes which share of the heads refreshed at each step."""

    def __init__(self):
        self.seen = []

    def start(self, layer, chosen):
        pass

    def __call__(self, layer, drift, tau, refreshed, chosen):
        self.seen.append(refreshed.item())


@pytest.mark.parametrize(("per_head", "shares"), [(False, {0.0, 1.0}), (True, {0.0, 0.5, 1.0})])
def test_heads_refresh_together_or_by_their_own_drift(per_head, shares):
    probe = Shares()
    retriever, slots, *_, (control,) = make_retriever(per_head=per_head, probe=probe)
    decode(retriever, slots)
    assert set(probe.seen) == shares
    assert control.rate == pytest.approx(sum(probe.seen) / 12)


def test_beams_are_refused():
    retriever, *_ = make_retriever()
    with pytest.raises(ValueError, match="num_beams must be 1"):
        retriever.reorder(torch.tensor([0, 1]))
    spec = retriever.spec
    with pytest.raises(ValueError, match="num_beams and num_return_sequences must be 1"):
        spec.build([spec] * 4, torch.zeros(4, 30, 8), torch.zeros(4, 30, 8), None)


def test_every_sample_steers_its_own_threshold():
    """Two samples with the same queries and different keys."""
    retriever, slots, *_, controls = make_retriever(samples=2)
    decode(retriever, slots, samples=2)
    assert controls[0].rate != controls[1].rate
