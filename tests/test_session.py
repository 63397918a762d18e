"""attach() and what it refuses: every error is triggered through the public API and its message read."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from kvcomp_eval import HybridKV, SnapKV, attach, make_method
from kvcomp_eval.compat import cache_keyword, set_text_attention, text_config

STEPS = {"max_new_tokens": 4, "do_sample": False}
TINY = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture
def qwen(families, images):
    from tests.conftest import TEXTS
    from tests.families import prompt_inputs

    model, processor = families["qwen2_5_vl"]
    return model, prompt_inputs("qwen2_5_vl", processor, [[images[1]]], [TEXTS[1]])


@pytest.fixture(scope="module")
def text_model():
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**TINY)).eval()


METHOD = SnapKV(budget_ratio=0.5, window=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cache_implementation": "static"}, "cache_implementation='static'.*replace the compressed cache"),
        ({"cache_implementation": "paged"}, "cache_implementation='paged'"),
        ({"prompt_lookup_num_tokens": 3}, "prompt lookup has to crop"),
        ({"assistant_model": "other"}, "assisted decoding has to crop"),
        ({"prefill_chunk_size": 8}, "whole prompt at once"),
        ({"output_attentions": True}, "kernels return no weights"),
        ({"use_cache": False}, "nothing to compress"),
    ],
)
def test_unsupported_generation_arguments_are_refused(qwen, arguments, message):
    model, inputs = qwen
    with attach(model, METHOD), pytest.raises(ValueError, match=message):
        model.generate(**inputs, **STEPS, **arguments)


def test_assistant_model_is_refused_in_one_short_sentence(text_model):
    ids = torch.arange(6)[None]
    with attach(text_model, METHOD), pytest.raises(ValueError, match=r"assistant_model=Qwen2ForCausalLM\)") as caught:
        text_model.generate(input_ids=ids, assistant_model=text_model, **STEPS)
    assert len(str(caught.value)) < 200


def test_arguments_of_a_generation_config_are_refused_too(text_model):
    config, ids = GenerationConfig(use_cache=False, max_new_tokens=4), torch.arange(6)[None]
    with attach(text_model, METHOD):
        with pytest.raises(ValueError, match="use_cache=False.*nothing to compress"):
            text_model.generate(input_ids=ids, generation_config=config)
        with pytest.raises(ValueError, match="use_cache=False.*nothing to compress"):
            text_model.generate(ids, config)


def test_image_prompt_without_token_types_is_refused(qwen):
    model, inputs = qwen
    inputs = {name: value for name, value in inputs.items() if name != "mm_token_type_ids"}
    with attach(model, METHOD), pytest.raises(ValueError, match=r"no mm_token_type_ids.*pass everything"):
        model.generate(**inputs, **STEPS)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 1, 1, 1, 0, 0]], "Row 0 of the batch is not left-padded"),
        ([[0, 1, 0, 1, 1, 1]], "not left-padded"),
        ([[0, 0, 0, 0, 0, 0]], "Row 0 of the batch holds no real token"),
        ([[1, 1, 1]], r"attention_mask has shape \(1, 3\), but input_ids has \(1, 6\)"),
    ],
)
def test_bad_padding_is_refused(text_model, mask, message):
    ids = torch.arange(6)[None]
    with attach(text_model, METHOD), pytest.raises(ValueError, match=message):
        text_model.generate(input_ids=ids, attention_mask=torch.tensor(mask), **STEPS)


def test_embeddings_alone_are_refused(text_model):
    with attach(text_model, METHOD), pytest.raises(ValueError, match="needs input_ids"):
        text_model.generate(inputs_embeds=torch.randn(1, 6, 32), **STEPS)


@pytest.mark.parametrize("keyword", ["cache", "past_key_values"])
def test_foreign_cache_is_refused(text_model, keyword):
    with attach(text_model, METHOD), pytest.raises(ValueError, match="given a DynamicCache"):
        text_model.generate(input_ids=torch.arange(6)[None], **{keyword: DynamicCache()}, **STEPS)


def test_cache_of_another_method_is_refused(text_model):
    with attach(text_model, METHOD):
        first = text_model.generate(input_ids=torch.arange(6)[None], return_dict_in_generate=True, **STEPS)
    other = SnapKV(budget_ratio=0.9, window=4)
    with attach(text_model, other), pytest.raises(ValueError, match="this session's method did not make"):
        text_model.generate(input_ids=first.sequences, cache=first.cache, **STEPS)


def test_several_conversations_cannot_be_continued(text_model):
    ids = torch.arange(12).view(2, 6)
    with attach(text_model, METHOD):
        first = text_model.generate(input_ids=ids, return_dict_in_generate=True, **STEPS)
        with pytest.raises(ValueError, match="one conversation at a time, not 2"):
            text_model.generate(input_ids=first.sequences, cache=first.cache, **STEPS)


def test_nested_attach_is_refused(text_model):
    with attach(text_model, METHOD), pytest.raises(ValueError, match="wrapped already"), attach(text_model, METHOD):
        pass


def test_unknown_backend_is_refused(text_model):
    with (
        pytest.raises(ValueError, match="'flash3' is not known; use one of sdpa, eager"),
        attach(text_model, METHOD, "flash3"),
    ):
        pass


def test_sliding_window_layers_are_refused():
    mistral = MistralForCausalLM(MistralConfig(**TINY, sliding_window=16))
    mixed = Qwen2ForCausalLM(Qwen2Config(**TINY, use_sliding_window=True, sliding_window=16, max_window_layers=1))
    for model in (mistral, mixed):
        with pytest.raises(ValueError, match=r"sliding-window layers \(sliding_window=16\)"), attach(model, METHOD):
            pass
        assert "generate" not in vars(model)


def test_configured_but_unused_sliding_window_is_fine():
    model = Qwen2ForCausalLM(Qwen2Config(**TINY, use_sliding_window=False, sliding_window=16)).eval()
    with attach(model, METHOD) as session:
        model.generate(input_ids=torch.arange(6)[None], **STEPS)
    assert session.last_report.kept_entries < session.last_report.full_entries


def test_switching_the_attention_away_is_noticed(text_model):
    with attach(text_model, METHOD):
        set_text_attention(text_model, "sdpa")
        with pytest.raises(
            (RuntimeError, ValueError), match=r"another attention than the registered one|bypasses the cache"
        ):
            text_model.generate(input_ids=torch.arange(6)[None], **STEPS)


def test_chunked_prompt_in_a_hand_written_loop_is_refused(text_model):
    ids = torch.arange(6)[None]
    with attach(text_model, METHOD) as session:
        cache = session.new_cache(ids)
        with pytest.raises(ValueError, match=r"arrived in pieces \(3 of 6 tokens\)"):
            text_model(input_ids=ids[:, :3], cache=cache)


def test_cache_of_other_prompts_is_refused(text_model):
    with attach(text_model, METHOD) as session:
        cache = session.new_cache(torch.arange(12).view(2, 6))
        with pytest.raises(ValueError, match="made for 2 prompts, but the model ran 3 rows"):
            text_model(input_ids=torch.arange(18).view(3, 6), cache=cache)


def test_cropping_and_resetting_are_refused(text_model):
    with attach(text_model, METHOD) as session:
        text_model.generate(input_ids=torch.arange(6)[None], **STEPS)
    layer = session.last_cache.packed_layers[0]
    with pytest.raises(NotImplementedError, match="cannot be cropped"):
        layer.crop(3)
    with pytest.raises(NotImplementedError, match="belongs to one prompt"):
        layer.reset()
    with pytest.raises(NotImplementedError, match="cannot be repeated along the batch"):
        session.last_cache.batch_repeat_interleave(2)
    with pytest.raises(NotImplementedError, match="cannot drop samples"):
        session.last_cache.batch_select_indices(torch.tensor([0]))


def test_model_code_that_hands_the_cache_no_keyword_arguments_is_refused(text_model):
    with attach(text_model, METHOD) as session:
        cache = session.new_cache(torch.arange(6)[None])
    with pytest.raises(RuntimeError, match="did not hand its keyword arguments.*not the one of transformers 5.24"):
        cache.update(torch.zeros(1, 2, 6, 8), torch.zeros(1, 2, 6, 8), 0)


def test_model_that_takes_no_cache_is_refused():
    class Foreign:
        def prepare_inputs_for_generation(self, input_ids):
            return input_ids

    with pytest.raises(TypeError, match="Foreign takes none of cache, past_key_values.*supports transformers 5.24"):
        cache_keyword(Foreign())


def test_report_before_any_call(text_model):
    with attach(text_model, METHOD) as session, pytest.raises(RuntimeError, match="No generate"):
        _ = session.last_report


@pytest.mark.parametrize("fails", [False, True])
def test_attach_undoes_everything(qwen, fails):
    shared, inputs = qwen
    model = copy.deepcopy(shared)
    set_text_attention(model, "eager")
    before = model.generate(**inputs, **STEPS)
    try:
        with attach(model, METHOD):
            assert text_config(model)._attn_implementation == "kvcomp"
            model.generate(**inputs, **STEPS)
            if fails:
                raise KeyError("anything")
    except KeyError:
        pass
    assert text_config(model)._attn_implementation == "eager"
    assert "generate" not in vars(model)
    assert torch.equal(model.generate(**inputs, **STEPS), before)


def test_eager_prefill_gives_the_same_tokens(family, make_inputs):
    _, model, _ = family
    outputs = []
    for backend in ("sdpa", "eager"):
        with attach(model, METHOD, prefill=backend):
            outputs.append(model.generate(**make_inputs(0, 1), **STEPS))
    assert torch.equal(*outputs)


def test_return_sequences_share_the_prompts_plan(text_model):
    ids = torch.arange(40)[None] % 50
    with attach(text_model, SnapKV(budget_entries=8, window=4)) as session:
        output = text_model.generate(input_ids=ids, do_sample=True, num_return_sequences=3, max_new_tokens=5)
    assert output.shape == (3, 45)
    assert session.last_report.kept_entries == 3 * 2 * 2 * 8


def test_hand_written_loop_decodes_as_generate_does(text_model):
    ids = torch.arange(40)[None] % 50
    with attach(text_model, METHOD) as session, torch.no_grad():
        expected = text_model.generate(input_ids=ids, **STEPS)[0, 40:].tolist()
        cache = session.new_cache(ids)
        logits, tokens = text_model(input_ids=ids, cache=cache).logits, []
        for _ in range(4):
            tokens.append(int(logits[0, -1].argmax()))
            logits = text_model(input_ids=torch.tensor([tokens[-1:]]), cache=cache).logits
    assert tokens == expected


@pytest.mark.parametrize(
    ("name", "parameters", "error", "message"),
    [
        ("snapkw", {}, ValueError, r"'snapkw' is not known \(did you mean 'snapkv'\?\); methods are: full, snapkv"),
        (
            "snapkv",
            {"windw": 3},
            ValueError,
            r"no parameter 'windw' \(did you mean 'window'\?\); it takes: budget_ratio",
        ),
        ("snapkv", {"window": "wide"}, TypeError, "window='wide' of method snapkv must be int"),
        ("snapkv", {"window": 2.5}, TypeError, "must be int"),
        ("snapkv", {"window": 0}, ValueError, "window=0 must be at least 1"),
        ("snapkv", {"kernel": 4}, ValueError, "kernel=4 must be odd"),
        ("snapkv", {"pooling": "sum"}, ValueError, "use one of avg, max"),
        ("snapkv", {"budget_ratio": 0.1, "budget_entries": 64}, ValueError, "exclude each other"),
        ("snapkv", {"budget_ratio": 0}, ValueError, r"budget_ratio=0.0 must lie in \(0, 1\]"),
        ("snapkv", {"budget_ratio": 10}, ValueError, "0.1 keeps 10 %"),
        ("snapkv", {"budget_ratio": "ten"}, TypeError, "budget_ratio='ten' of method snapkv must be float or none"),
        ("snapkv", {"budget_ratio": -0.1}, ValueError, "budget_ratio=-0.1 must lie in"),
        ("snapkv", {"budget_ratio": "nan"}, ValueError, "budget_ratio=nan must lie in"),
        ("snapkv", {"budget_entries": 2.5}, TypeError, "budget_entries=2.5 of method snapkv must be int or none"),
        ("snapkv", {"budget_entries": 0}, ValueError, "at least 1 entry"),
        ("snapkv", {"budget_entries": True}, TypeError, "budget_entries=True"),
        ("full", {"budget_ratio": 0.1}, ValueError, "takes no budget"),
        ("hybridkv", {"alpha": 2}, ValueError, "alpha=2.0 must lie between 0 and 1"),
        ("hybridkv", {"r": -1}, ValueError, "r=-1.0 must be at least 0"),
        ("hybridkv", {"r": "nan"}, ValueError, "r=nan must be at least 0"),
        ("hybridkv", {"theta": "nan"}, ValueError, "theta=nan would make every head dynamic"),
        ("hybridkv", {"kernel": 2}, ValueError, "kernel=2 must be odd"),
        ("hybridkv", {"top_k_ratio": 2}, ValueError, "top_k_ratio=2.0 must lie between 0 and 1"),
        ("hybridkv", {"window": 0}, ValueError, "window=0 must be at least 1"),
        ("hybridkv", {"theta_quantile": 1.5}, ValueError, "theta_quantile=1.5"),
        ("hybridkv", {"index": "median"}, ValueError, "use one of mean, minmax, cuboid"),
        ("hybridkv", {"text_rows": "some"}, ValueError, "after_visual, all, last_segment"),
        ("hybridkv", {"group_reduce": "sum"}, ValueError, "mean, min, max"),
        ("hybridkv", {"padding": "up"}, ValueError, "nearest, nearest_linear, next, prev, none"),
        ("hybridkv", {"total": "x"}, ValueError, "conserve, literal"),
        ("hybridkv", {"rounding": "x"}, ValueError, "exact, ceil"),
        ("hybridkv", {"chunk_score": "x"}, ValueError, "max_softmax, mean_softmax, mean_logit"),
        ("hybridkv", {"allocation": "x"}, ValueError, "global, layer"),
        ("hybridkv", {"offload": "disk"}, ValueError, "use auto, true or false"),
        ("hybridkv", {"chunk_size": 0}, ValueError, "chunk_size=0"),
        ("pyramidkv", {"beta": 0}, ValueError, "beta=0"),
        ("adakv", {"floor": 1.5}, ValueError, "floor=1.5"),
        ("streamingllm", {"sinks": -1}, ValueError, "sinks=-1"),
    ],
)
def test_bad_hyper_parameters(name, parameters, error, message):
    with pytest.raises(error, match=message):
        make_method(name, **parameters)


def test_strings_become_the_types_of_the_parameters():
    method = make_method(
        "hybridkv",
        budget_ratio="0.1",
        window="16",
        theta="-inf",
        theta_quantile="none",
        budget_entries="null",
        count_window="false",
        offload="true",
    )
    assert method == HybridKV(budget_ratio=0.1, window=16, theta=float("-inf"), count_window=False, offload=True)
    assert make_method("hybridkv", theta="inf").theta == float("inf")
    assert make_method("hybridkv", offload="auto").offload == "auto"
    assert make_method("snapkv", budget_entries="64") == SnapKV(budget_entries=64)


def test_importing_the_package_loads_no_torch():
    code = "import sys, kvcomp_eval, kvcomp_eval.methods.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
