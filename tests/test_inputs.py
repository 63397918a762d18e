"""What methods with `needs_inputs` are handed, on all five families."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from kvcomp_eval import Full, SnapKV, attach
from kvcomp_eval.reference import replay
from tests.test_oracle import STEPS, compressed


@dataclass(frozen=True)
class Curious(Full):
    """Keeps everything; remembers prompts, and what a layer makes of its own input at decode steps."""

    prompts: list = field(default_factory=list, compare=False)
    guesses: list = field(default_factory=list, compare=False)

    name = "curious"
    needs_inputs = True

    def observe(self, prefill):
        self.prompts.append(prefill)
        return super().observe(prefill)

    def asking(self, previous, current):
        assert (previous is None) == (current.module.layer_idx == 0)
        assert previous is None or previous.module.layer_idx == current.module.layer_idx - 1
        self.guesses.append(current.queries_of(current.module))


@pytest.fixture
def curious(family, make_inputs, monkeypatch):
    """The method after a padded batch, and the queries that attended at its decode steps."""
    from kvcomp_eval.stores.heads import HeadStore

    attended, step = [], HeadStore.step

    def noting(self, queries, *args):
        attended.append(queries)
        return step(self, queries, *args)

    monkeypatch.setattr(HeadStore, "step", noting)
    method = Curious()
    with attach(family[1], method):
        family[1].generate(**make_inputs(0, 1, 2), **STEPS)
    return method, attended


def test_a_layer_makes_its_own_queries_of_its_own_input(curious):
    """Bias, norm and M-RoPE included."""
    method, attended = curious
    assert len(attended) == 3 * (STEPS["max_new_tokens"] - 1)
    for guess, queries in zip(method.guesses, attended, strict=True):
        torch.testing.assert_close(guess, queries)


def test_prompt_inputs_belong_to_the_real_tokens(curious):
    """Queries made of them are those that the method saw; rotation can be undone."""
    for prefill in curious[0].prompts:
        inputs = prefill.inputs
        torch.testing.assert_close(inputs.queries_of(inputs.module)[0], prefill.queries, atol=1e-4, rtol=1e-4)
        plain = inputs.rotation.undo(prefill.keys[None])
        heads = inputs.module.k_proj(inputs.hidden).unflatten(-1, (-1, prefill.keys.shape[-1]))
        if hasattr(inputs.module, "k_norm"):
            heads = inputs.module.k_norm(heads)
        torch.testing.assert_close(plain, heads.transpose(1, 2), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(inputs.rotation.turn(plain)[0], prefill.keys, atol=1e-4, rtol=1e-4)


def test_text_rotation_is_the_models_own(family, make_inputs):
    """Two successive text tokens at the end of the prompt differ by one step of it."""
    method = Curious()
    with attach(family[1], method):
        family[1].generate(**make_inputs(1), **STEPS)
    inputs = method.prompts[0].inputs
    vectors = torch.randn(1, 1, 2, inputs.rotation.cos.shape[-1])

    def product(rotation):
        turned = rotation.turn(vectors)[0, 0]
        return turned[0] @ turned[1]

    last = inputs.sample(0, inputs.hidden.shape[1] - 2).rotation
    torch.testing.assert_close(product(last), product(inputs.text_rotation(2)), atol=1e-4, rtol=1e-4)


def test_hooks_are_there_only_for_methods_that_ask_and_only_inside_the_block(family):
    _, model, _ = family
    attentions = [layer.self_attn for layer in model.get_decoder().layers]
    with attach(model, SnapKV(budget_ratio=0.5)):
        assert not any(module._forward_pre_hooks for module in attentions)
    with attach(model, Curious()):
        assert all(module._forward_pre_hooks for module in attentions)
    assert not any(module._forward_pre_hooks for module in attentions)


def test_prompt_inputs_are_not_kept(family, make_inputs):
    with attach(family[1], Curious()) as session:
        family[1].generate(**make_inputs(1), **STEPS | {"max_new_tokens": 1})
    assert all(layer.inputs is None for layer in session.last_cache.packed_layers)


def test_speculation_asks_with_the_layer_before(family, make_inputs):
    """The first layer chooses as without speculation, the others do not; both equal the oracle."""
    from kvcomp_eval import make_method

    _, model, _ = family
    inputs = make_inputs(1)
    runs = [
        compressed(model, inputs, make_method("infinigen", budget_entries=9, window=4, partial=1, speculate=speculate))
        for speculate in (True, False)
    ]
    first, second = ([layer.trace[0] for layer in session.last_cache.layers] for _, session in runs)
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])
    for output, session in runs:
        assert torch.equal(output.sequences, replay(model, inputs, session.last_cache, **STEPS).sequences)
