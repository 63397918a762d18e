"""Compressed decoding equals a full cache masked to what the method attended to, on all five families."""

from __future__ import annotations

import pytest
import torch

from kvcomp_eval import Full, HybridKV, SnapKV, attach, make_method
from kvcomp_eval.compat import set_text_attention
from kvcomp_eval.reference import replay
from tests.families import prompt_inputs
from tests.head_scores import made_up_scores

STEPS = {"max_new_tokens": 12, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}

# Thetas are per family, since random models have heads of very different sparsity.
METHODS = {
    "snapkv": lambda: SnapKV(budget_ratio=0.4, window=4),
    "snapkv_entries": lambda: SnapKV(budget_entries=9, window=4, kernel=3, pooling="max"),
    "pyramidkv": lambda: make_method("pyramidkv", budget_ratio=0.4, window=4),
    "adakv": lambda: make_method("adakv", budget_ratio=0.4, window=4),
    "sparsemm": lambda: make_method("sparsemm", budget_ratio=0.4, window=4, head_scores=made_up_scores()),
    "bacon": lambda: make_method("bacon", budget_ratio=0.4, window=4, backbone="adakv"),
    "h2o": lambda: make_method("h2o", budget_entries=12),
    "h2o_rolling": lambda: make_method("h2o", budget_entries=12, decode="rolling"),
    "lookm_no_merge": lambda: make_method("lookm", budget_entries=12, merge="none"),
    "madakv": lambda: make_method("madakv", budget_ratio=0.4, window=4),
    "meda_no_merge": lambda: make_method("meda", budget_entries=12, merge="none"),
    "vlcache": lambda: make_method("vlcache", budget_entries=12),
    "rcr": lambda: make_method("rcr", budget_entries=9, window=4, rank=3, tau=0.3, branching=False),  # as on a GPU
    "random_refresh": lambda: make_method("random_refresh", budget_entries=9, window=4),
    "rcr_exact": lambda: make_method("exact", budget_entries=9, window=4),
    "quest": lambda: make_method("quest", budget_entries=12, window=4, page=4),
    "arkvale": lambda: make_method("arkvale", budget_entries=12, window=4, page=4),
    "freekv": lambda: make_method("freekv", budget_entries=12, window=4, page=2),
    "infinigen": lambda: make_method("infinigen", budget_entries=9, window=4),
    # Of full rank the rebuilt keys are the keys themselves.
    "shadowkv": lambda: make_method("shadowkv", budget_entries=12, window=4, chunk_size=2, rank=16),
    "shadowkv_outliers": lambda: make_method(
        "shadowkv", budget_entries=12, window=4, chunk_size=2, rank=16, outliers=2, dense_layers=1
    ),
    "duoattention": lambda: make_method("duoattention", budget_entries=12, sinks=2, recent=4),
    "razorattention_uncompensated": lambda: make_method(
        "razorattention", budget_entries=12, sinks=2, recent=4, compensation=False, period=20
    ),
    "streamingllm": lambda: make_method("streamingllm", budget_entries=9),
    "random": lambda: make_method("random", budget_ratio=0.4, window=4),
    "hybridkv_mixed": lambda: HybridKV(budget_ratio=0.6, window=4, chunk_size=2, theta_quantile=0.5),
    "hybridkv_static": lambda: HybridKV(budget_ratio=0.4, window=4, theta=float("-inf")),
    "hybridkv_dynamic": lambda: HybridKV(budget_ratio=0.6, window=4, chunk_size=2, theta=float("inf")),
    "hybridkv_box": lambda: HybridKV(
        budget_ratio=0.6, window=4, chunk_size=2, theta=float("inf"), index="minmax", chunk_score="mean_softmax"
    ),
    "hybridkv_rate": lambda: HybridKV(
        budget_ratio=0.6, window=4, chunk_size=2, theta_quantile=0.5, refresh="rate", rho=0.5
    ),
    "hybridkv_drift": lambda: HybridKV(
        budget_ratio=0.6, window=4, chunk_size=2, theta_quantile=0.5, classify="drift", probe_steps=3
    ),
    "hybridkv_drift_rate": lambda: HybridKV(
        budget_ratio=0.6, window=4, chunk_size=2, theta_quantile=0.5, classify="drift", refresh="rate", rho=0.5
    ),
    "hybridkv_layer": lambda: HybridKV(
        budget_ratio=0.5, window=4, chunk_size=2, theta_quantile=0.5, allocation="layer"
    ),
}

# Merged, rebuilt or weighted entries exist in no full cache: they are checked by vectors (tests/stores).
MERGING = {
    "lookm": lambda **budget: make_method("lookm", **budget),
    "lookm_weighted": lambda **budget: make_method("lookm", **budget, merge="weighted"),
    "meda": lambda **budget: make_method("meda", **budget),
    "shadowkv": lambda **budget: make_method("shadowkv", **budget, window=4, chunk_size=2, rank=5),
    "magicpig": lambda **budget: make_method("magicpig", **budget, window=4, bits=2, tables=6),
    "razorattention": lambda **budget: make_method("razorattention", **budget, sinks=2, recent=4, period=20),
}


def compressed(model, inputs, method, **kwargs):
    with attach(model, method, trace=True) as session:
        output = model.generate(**inputs, **(STEPS | kwargs))
    return output, session


def largest_difference(output, other):
    return max((a - b).abs().max().item() for a, b in zip(output.logits, other.logits, strict=True))


@pytest.mark.parametrize("rows", [(1,), (0, 1, 2)], ids=["single", "padded batch"])
@pytest.mark.parametrize("make_method", METHODS.values(), ids=METHODS)
def test_logits_equal_masked_full_cache(family, make_inputs, make_method, rows):
    _, model, _ = family
    inputs = make_inputs(*rows)
    output, session = compressed(model, inputs, make_method())
    expected = replay(model, inputs, session.last_cache, **STEPS)
    assert torch.equal(output.sequences, expected.sequences)
    assert largest_difference(output, expected) < 1e-4
    report = session.last_report
    assert report.kept_entries < report.full_entries


@pytest.mark.parametrize("make_method", METHODS.values(), ids=METHODS)
def test_left_padded_row_selects_as_alone(family, make_inputs, make_method):
    _, model, _ = family
    _, together = compressed(model, make_inputs(0, 1, 2), make_method())
    padded = together.last_cache.prompt.padded_length
    for row in range(3):
        _, alone = compressed(model, make_inputs(row), make_method())
        start = together.last_cache.prompt.starts[row]
        for batched, single in zip(together.last_cache.layers, alone.last_cache.layers, strict=True):
            prompt = single.trace[0][0, :, : padded - start]
            assert torch.equal(batched.trace[0][row, :, start:padded], prompt)
        assert alone.last_cache.prompt.padded_length == padded - start


@pytest.mark.parametrize(
    "method",
    [
        Full(),
        SnapKV(budget_ratio=1.0),
        HybridKV(budget_ratio=1.0),
        HybridKV(budget_ratio=1.0, theta=float("inf")),
        HybridKV(budget_ratio=1.0, classify="drift"),
    ],
    ids=["full", "snapkv", "hybridkv", "hybridkv_dynamic", "hybridkv_drift"],
)
@pytest.mark.parametrize("rows", [(1,), (0, 1, 2)], ids=["single", "padded batch"])
def test_whole_budget_is_token_identical_to_stock(family, make_inputs, method, rows):
    _, model, _ = family
    inputs = make_inputs(*rows)
    stock = model.generate(**inputs, **STEPS)
    output, session = compressed(model, inputs, method)
    assert torch.equal(output.sequences, stock.sequences)
    assert largest_difference(output, stock) < 1e-4
    assert session.last_report.realised_ratio == 1
    full, _ = compressed(model, inputs, Full())
    assert largest_difference(output, full) == 0


@pytest.mark.parametrize("name", MERGING)
def test_merging_method(family, make_inputs, name):
    """Whole budget: token-identical. Less: a padded batch decodes as its rows do alone, on fewer entries."""
    _, model, _ = family
    inputs = make_inputs(0, 1, 2)
    stock = model.generate(**inputs, **STEPS)
    whole, _ = compressed(model, inputs, MERGING[name](budget_ratio=1.0))
    assert torch.equal(whole.sequences, stock.sequences)
    assert largest_difference(whole, stock) < 1e-4
    together, session = compressed(model, inputs, MERGING[name](budget_entries=12))
    assert session.last_report.kept_entries < session.last_report.full_entries
    assert largest_difference(together, stock) > 1e-2
    for row in range(3):
        alone, _ = compressed(model, make_inputs(row), MERGING[name](budget_entries=12))
        for batched, single in zip(together.logits, alone.logits, strict=True):
            torch.testing.assert_close(batched[row], single[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["snapkv", "hybridkv_mixed"])
def test_compression_changes_the_logits(family, make_inputs, name):
    """Without this, equality with the oracle could hold because nothing is dropped."""
    _, model, _ = family
    inputs = make_inputs(1)
    stock = model.generate(**inputs, **STEPS)
    output, _ = compressed(model, inputs, METHODS[name]())
    first_decoded = (output.logits[1] - stock.logits[1]).abs().max()
    assert first_decoded > 1e-2


@pytest.mark.parametrize("name", ["snapkv", "hybridkv_mixed", "hybridkv_drift"])
def test_second_prompt_behaves_as_in_a_fresh_session(family, make_inputs, name):
    _, model, _ = family
    with attach(model, METHODS[name]()):
        model.generate(**make_inputs(1), **STEPS)
        second = model.generate(**make_inputs(0), **STEPS)
    fresh, _ = compressed(model, make_inputs(0), METHODS[name]())
    assert torch.equal(second.sequences, fresh.sequences)
    assert largest_difference(second, fresh) == 0


@pytest.mark.parametrize("name", ["snapkv", "hybridkv_mixed", "hybridkv_dynamic"])
def test_beam_scores_are_those_of_the_beams_decoded_alone(family, make_inputs, name):
    """Beams swap their generated tokens at every step; each must end with its own log-likelihood."""
    _, model, _ = family
    settings = STEPS | {"max_new_tokens": 8, "num_beams": 3, "output_scores": True}
    with attach(model, METHODS[name]()):
        beams = model.generate(**make_inputs(0, 1), **settings)
    for row in range(2):
        inputs = make_inputs(row)
        tokens = beams.sequences[row, -8:]
        length = inputs["input_ids"].shape[1]
        forced, _ = compressed(
            model,
            inputs,
            METHODS[name](),
            max_new_tokens=8,
            prefix_allowed_tokens_fn=lambda _, seen, tokens=tokens, length=length: [tokens[len(seen) - length].item()],
        )
        steps = torch.stack([logits[0].log_softmax(-1) for logits in forced.logits])
        expected = steps.gather(1, tokens[:, None]).mean()
        assert beams.sequences_scores[row].item() == pytest.approx(expected.item(), abs=1e-4)


@pytest.mark.parametrize("name", ["snapkv", "hybridkv_mixed", "hybridkv_drift"])
def test_text_follow_up_continues_the_compressed_cache(family, make_inputs, name):
    _, model, processor = family
    inputs = make_inputs(1)
    follow_up = processor.tokenizer(" and this one?", return_tensors="pt", add_special_tokens=False).input_ids

    def second_turn(first):
        ids = torch.cat([first.sequences, follow_up], dim=1)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    with attach(model, METHODS[name](), trace=True) as session:
        first = model.generate(**inputs, **STEPS)
        output = model.generate(**second_turn(first), cache=first.cache, **STEPS)
        traced = session.last_cache
    reference = replay(model, inputs, traced, **STEPS)
    assert torch.equal(first.sequences, reference.sequences)
    # The reference layers stand where the first turn ended and hold the rest of the trace.
    set_text_attention(model, "kvcomp")
    try:
        expected = model.generate(**second_turn(reference), cache=reference.cache, **STEPS)
    finally:
        set_text_attention(model, "sdpa")
    assert torch.equal(output.sequences, expected.sequences)
    assert largest_difference(output, expected) < 1e-4


@pytest.mark.parametrize("name", METHODS)
def test_bf16_runs_without_nan(family, make_inputs, name):
    _, model, _ = family
    model.to(torch.bfloat16)
    try:
        inputs = make_inputs(0, 1, 2).to(torch.bfloat16)
        output, _ = compressed(model, inputs, METHODS[name]())
        assert all(torch.isfinite(step).all() for step in output.logits)
    finally:
        model.float()


@pytest.mark.parametrize("make_method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("text", ["", "no image, but rather more text than the window holds", "a"])
def test_prompt_without_image(family, make_method, text):
    name, model, processor = family
    inputs = prompt_inputs(name, processor, [[]], [text or "?"])
    output, session = compressed(model, inputs, make_method())
    expected = replay(model, inputs, session.last_cache, **STEPS)
    assert largest_difference(output, expected) < 1e-4


@pytest.mark.parametrize("method", [SnapKV(budget_ratio=0.1), HybridKV(budget_ratio=0.1)], ids=["snapkv", "hybridkv"])
def test_prompt_shorter_than_the_window_is_kept_whole(family, make_inputs, method):
    name, model, processor = family
    inputs = prompt_inputs(name, processor, [[]], ["short"])
    assert inputs["input_ids"].shape[1] <= method.window
    _, session = compressed(model, inputs, method)
    assert session.last_report.kept_entries == session.last_report.full_entries


def test_text_longer_than_the_budget(family, images):
    name, model, processor = family
    inputs = prompt_inputs(name, processor, [[images[0]]], ["a long question " * 12])
    output, session = compressed(model, inputs, HybridKV(budget_ratio=0.2, window=4, chunk_size=4, theta_quantile=0.5))
    expected = replay(model, inputs, session.last_cache, **STEPS)
    assert largest_difference(output, expected) < 1e-4
    visual = session.last_cache.prompt.visual[0]
    static = session.last_report.details["static"][0]
    heads = torch.stack([layer.trace[0][0] for layer in session.last_cache.layers]).flatten(0, 1)
    assert any(static)
    for is_static, attended in zip(static, heads, strict=True):
        if is_static:
            assert not (attended & visual).any()
