"""H2O's rolling cache: the specification's step, and a dense simulation over many steps."""

from __future__ import annotations

import torch

from kvcomp_eval.stores.rolling import RollingSlots


def test_step_of_the_specification():
    """Kept {0, 2, 4, 5}; the new token attends [.1, .2, .45, .05, .2] and 4 leaves."""
    received = torch.tensor([[2.8, 1.2, 0.5, 0.2]])
    slots = RollingSlots(torch.tensor([[0, 2, 4, 5]]), received, 2, 6, torch.zeros(1, 5))
    slots.keys[0, :4] = torch.eye(5)[:4]
    slots.values[0, :4] = torch.eye(5)[:4]
    slots.append(torch.eye(5)[4:], torch.eye(5)[4:])
    weights = torch.tensor([[[0.1, 0.2, 0.45, 0.05, 0.2]]])
    output = slots.attend(weights.log(), 1.0)
    torch.testing.assert_close(output, weights)
    torch.testing.assert_close(slots._received, torch.tensor([[2.9, 1.4, 0.95, 0.25, 0.2]]))
    assert slots.positions.gather(1, slots._vacant).item() == 4
    slots.append(torch.ones(1, 5), torch.ones(1, 5))
    assert sorted(slots.positions[0].tolist()) == [0, 2, 5, 6, 7]


def test_many_steps_equal_a_dense_simulation():
    generator = torch.Generator().manual_seed(0)
    heads, group, length, kept_count, recent, steps = 3, 2, 20, 8, 3, 15
    keys = torch.randn(heads, length + steps, 4, generator=generator)
    values = torch.randn(heads, length + steps, 4, generator=generator)
    queries = 2 * torch.randn(steps, heads, group, 4, generator=generator)
    received = torch.rand(heads, length, generator=generator)
    kept = torch.stack([torch.randperm(length, generator=generator)[:kept_count].sort().values for _ in range(heads)])
    slots = RollingSlots(kept, received.gather(1, kept), recent, length, keys)
    for head in range(heads):
        slots.keys[head, :kept_count] = keys[head, kept[head]]
        slots.values[head, :kept_count] = values[head, kept[head]]
    alive = [dict.fromkeys(kept[head].tolist()) for head in range(heads)]
    for head, members in enumerate(alive):
        members.update({position: received[head, position].item() for position in members})
    for step in range(steps):
        now = length + step
        slots.append(keys[:, now], values[:, now])
        output = slots.attend(queries[step], 0.5)
        for head, members in enumerate(alive):
            members[now] = 0.0
            positions = sorted(members)
            weights = (queries[step, head] @ keys[head, positions].T * 0.5).softmax(-1)
            torch.testing.assert_close(output[head], weights @ values[head, positions])
            for position, weight in zip(positions, weights.mean(0).tolist(), strict=True):
                members[position] += weight
            old = [position for position in positions if position < now + 1 - recent]
            del members[min(old, key=members.__getitem__)]
            assert len(members) == kept_count
            vacant = slots.positions[head, slots._vacant[head]].item()
            assert set(slots.positions[head].tolist()) - {vacant} == set(members)


def test_beams_take_over_everything():
    slots = RollingSlots(torch.tensor([[0, 1], [0, 1]]), torch.rand(2, 2), 1, 2, torch.zeros(1, 3))
    slots.append(torch.tensor([[1.0, 1, 1], [2, 2, 2]]), torch.ones(2, 3))
    slots.reorder_generated(torch.tensor([1, 1]))
    assert torch.equal(slots.keys[0], slots.keys[1])
    assert slots.keys[0, 2].tolist() == [2, 2, 2]
