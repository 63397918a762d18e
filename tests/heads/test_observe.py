"""What heads look at, from queries and keys, is what transformers' own attention weights say."""

from __future__ import annotations

import torch

from kvcomp_eval.compat import set_text_attention, text_config
from kvcomp_eval.heads.observe import decode_observed


def test_most_attended_image_tokens_are_those_of_eager_attention(family, make_inputs):
    _, model, _ = family
    inputs = make_inputs(1)
    tokens, looked_at = decode_observed(model, inputs, max_new_tokens=8)
    before = text_config(model)._attn_implementation
    set_text_attention(model, "eager")
    try:
        expected = model.generate(
            **inputs, max_new_tokens=8, do_sample=False, output_attentions=True, return_dict_in_generate=True
        )
    finally:
        set_text_attention(model, before)
    is_image = inputs["input_ids"][0] == model.config.image_token_id
    length = len(is_image)
    assert tokens == expected.sequences[0, length:].tolist()
    weights = torch.stack([torch.stack([layer[0, :, -1, :length] for layer in step]) for step in expected.attentions])
    assert looked_at.shape == (8, 3, 8)
    assert torch.equal(looked_at, weights[..., is_image].argmax(-1))
    assert len(looked_at.unique()) > 3


def test_model_is_left_as_it_was(family, make_inputs):
    _, model, _ = family
    before = text_config(model)._attn_implementation
    decode_observed(model, make_inputs(0), max_new_tokens=2)
    assert text_config(model)._attn_implementation == before
