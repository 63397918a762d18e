"""Faithfulness to the uncompressed model: equal answers score 1, teacher forcing agrees with the masked reference."""

from __future__ import annotations

import math

import pytest
import torch

from kvcomp_eval import Full, HybridKV, SnapKV, attach
from kvcomp_eval.metrics.fidelity import first_divergent_token, forced_logits, free_running, teacher_forced
from kvcomp_eval.reference import replay
from tests.families import prompt_inputs

LENGTH = 8
METHODS = {
    "snapkv": SnapKV(budget_ratio=0.3, window=4),
    "hybridkv": HybridKV(budget_ratio=0.5, window=4, chunk_size=2, theta_quantile=0.5),
}
QUESTIONS = ("hello there", "what is it?", "x", "where does it stand?")


@pytest.fixture
def answered(family, images):
    """Four prompts of a family with the answers of the full cache."""
    name, model, processor = family
    cases = []
    for row, question in enumerate(QUESTIONS):
        inputs = prompt_inputs(name, processor, [[images[row % len(images)]]], [question])
        with attach(model, Full()):
            output = model.generate(**inputs, max_new_tokens=LENGTH, do_sample=False)
        cases.append((inputs, output[0, -LENGTH:].tolist()))
    return model, cases


def logits_under(model, method, inputs, tokens, trace=False):
    with attach(model, method, trace=trace) as session:
        return forced_logits(model, inputs, tokens), session.last_cache


def test_same_answer_is_entirely_faithful():
    same = free_running("a red ring.", "a red ring.", [1, 2, 3], [1, 2, 3])
    assert same.to_dict() == {
        "rouge_l": 1.0,
        "rouge_l_coco": 1.0,
        "exact_match": 1.0,
        "first_divergent_token": None,
        "agreed_share": 1.0,
        "length_ratio": 1.0,
    }
    assert free_running("", "", [], []) == free_running("?!", "?!", [5], [5]) == same


def test_measures_of_an_answer_that_leaves_the_reference():
    got = free_running("a red ring", "a red circle stands", [1, 2, 3], [1, 2, 4, 5])
    assert got.first_divergent_token == 2
    assert got.agreed_share == 0.5
    assert got.length_ratio == 0.75
    assert got.exact_match == 0
    assert got.rouge_l == pytest.approx(4 / 7)
    assert got.rouge_l_coco == pytest.approx(2.44 * 2 / (3 + 1.44 * 4))


def test_answer_cut_short_diverges_where_it_ends():
    assert first_divergent_token([1, 2], [1, 2, 3]) == 2
    assert first_divergent_token([], [1]) == 0
    assert math.isnan(free_running("a", "", [1], []).length_ratio)
    assert free_running("", "a", [], [1]).rouge_l == 0


def test_forcing_the_models_own_answer_gives_the_logits_of_free_running(answered):
    model, cases = answered
    inputs, _ = cases[0]
    stock = model.generate(
        **inputs, max_new_tokens=LENGTH, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    assert torch.equal(forced_logits(model, inputs, stock.sequences[0, -LENGTH:].tolist()), torch.cat(stock.logits))


def test_full_against_itself_is_exactly_faithful(answered):
    model, cases = answered
    for inputs, tokens in cases:
        first, _ = logits_under(model, Full(), inputs, tokens)
        second, _ = logits_under(model, Full(), inputs, tokens)
        same = teacher_forced(first, second, tokens)
        assert (same.kl, same.top1_agreement, same.nll_difference) == (0, 1, 0)
        assert same.kl_by_position == (0,) * LENGTH


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_measures_equal_those_of_the_masked_full_cache(answered, method):
    """Twenty samples over the five families; the expectation is written out with other functions of torch."""
    model, cases = answered
    largest = 0.0
    for inputs, tokens in cases:
        full, _ = logits_under(model, Full(), inputs, tokens)
        compressed, cache = logits_under(model, method, inputs, tokens, trace=True)
        got = teacher_forced(full, compressed, tokens)
        masked = forced_logits(model, inputs, tokens, lambda cache=cache, **given: replay(model, {}, cache, **given))
        p, q = (torch.distributions.Categorical(logits=logits.double()) for logits in (full, masked))
        picked = torch.tensor(tokens)
        kl = torch.distributions.kl_divergence(p, q)
        assert got.kl_by_position == pytest.approx(kl.tolist(), abs=1e-5)
        assert got.kl == pytest.approx(kl.mean().item(), abs=1e-5)
        assert got.nll_difference == pytest.approx((p.log_prob(picked) - q.log_prob(picked)).mean().item(), abs=1e-5)
        assert got.top1_agreement == (full.argmax(-1) == masked.argmax(-1)).double().mean().item()
        assert got.kl_by_position[0] < 1e-9
        largest = max(largest, got.kl)
    assert largest > 1e-3


def test_forcing_overrules_other_logits_processors(answered):
    model, cases = answered
    inputs, tokens = cases[0]
    repeated = [tokens[0]] * LENGTH
    expected = forced_logits(model, inputs, repeated)
    model.generation_config.no_repeat_ngram_size = 1
    try:
        assert torch.equal(forced_logits(model, inputs, repeated), expected)
    finally:
        model.generation_config.no_repeat_ngram_size = None


def test_unusable_answers_are_refused(answered):
    model, cases = answered
    inputs, tokens = cases[0]
    with pytest.raises(ValueError, match="empty"):
        forced_logits(model, inputs, [])
    with pytest.raises(ValueError, match="same tokens"):
        teacher_forced(torch.zeros(3, 5), torch.zeros(3, 5), [1, 2])
    model.generation_config.eos_token_id = tokens[2]
    try:
        with pytest.raises(ValueError, match="first end token"):
            forced_logits(model, inputs, [tokens[2], *tokens])
    finally:
        model.generation_config.eos_token_id = None
