"""Packed training computes what the stock model computes at inference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from kvcomp_eval.demo import packing, scenes
from kvcomp_eval.demo.build import build_config, build_model, build_processor
from kvcomp_eval.demo.forward import PackedText, prefix_positions, raster_order, vision_forward

SEED = 5


@pytest.fixture(scope="module")
def processor():
    return build_processor()


@pytest.fixture(scope="module")
def model(processor):
    return build_model(build_config(processor.tokenizer, num_hidden_layers=2), seed=0).eval()


@pytest.mark.parametrize(("images", "grid"), [(1, 2), (3, 3), (2, 5)])
@torch.no_grad()
def test_packed_forward_is_the_stock_forward(model, processor, images, grid):
    batch = packing.make_batch(processor.tokenizer, np.random.default_rng(SEED), 2, images, grid)
    rng = np.random.default_rng(SEED)
    drawn = [[scenes.random_scene(rng, grid) for _ in range(images)] for _ in range(2)]
    pictures = [Image.fromarray(scenes.render(scene, rng)) for sample in drawn for scene in sample]
    pixels = processor.image_processor(pictures, return_tensors="pt")
    assert pixels.image_grid_thw.tolist() == [[1, 4 * grid, 4 * grid]] * (2 * images)
    torch.testing.assert_close(batch.pixel_values, pixels.pixel_values)

    stock = model.model.visual(pixels.pixel_values, grid_thw=pixels.image_grid_thw).pooler_output
    tokens = raster_order(vision_forward(model.model.visual, batch.pixel_values, grid), grid)
    torch.testing.assert_close(tokens.flatten(0, 1), stock, atol=1e-5, rtol=1e-5)

    prefix = torch.tensor(packing.prefix_ids(processor.tokenizer, images, grid))
    hidden = PackedText(model, prefix, batch)(tokens.reshape(2, -1, tokens.shape[-1]))
    start = len(prefix)
    for group in batch.groups:
        segments, length = group.ids.shape[1:]
        for segment in (0, segments - 1):
            ids = torch.cat((prefix, group.ids[1, segment]))[None]
            expected = model(
                input_ids=ids,
                pixel_values=pixels.pixel_values.view(2, -1, 1176)[1],
                image_grid_thw=pixels.image_grid_thw[images:],
                mm_token_type_ids=(ids == model.config.image_token_id).int(),
            ).logits[0, len(prefix) :]
            first = start + segment * length
            got = model.lm_head(hidden[1, first : first + length])
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
        start += segments * length


def test_prefix_is_what_the_chat_template_gives(processor):
    content = [
        {"type": "text", "text": "image 1"},
        {"type": "image"},
        {"type": "text", "text": "image 2"},
        {"type": "image"},
        {"type": "text", "text": "describe image 2 ."},
    ]
    message = {"role": "user", "content": content}
    prompt = processor.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    pictures = [Image.new("RGB", (112, 112))] * 2
    ids = processor(text=[prompt], images=pictures, return_tensors="pt").input_ids[0].tolist()
    asked, labels = packing.segment_ids(processor.tokenizer, "describe image 2 .", "small red circle")
    prefix = packing.prefix_ids(processor.tokenizer, 2, 2)
    answer = [label for label in labels if label != packing.IGNORE]
    assert ids == (prefix + asked)[: -len(answer)]
    assert processor.tokenizer.decode(answer) == "small red circle <|im_end|>"


def test_system_messages_are_dropped(processor):
    user = {"role": "user", "content": "please describe image 1 ."}
    system = {"role": "system", "content": "You are a helpful assistant."}
    plain = processor.apply_chat_template([user], tokenize=False)
    assert processor.apply_chat_template([system, user], tokenize=False) == plain


def test_prefix_positions_are_those_of_get_rope_index(model, processor):
    ids = torch.tensor(packing.prefix_ids(processor.tokenizer, 3, 2))[None]
    images = (ids == model.config.image_token_id).int()
    expected, _ = model.model.get_rope_index(ids, images, image_grid_thw=torch.tensor([[1, 8, 8]] * 3))
    assert torch.equal(prefix_positions(3, 2), expected[:, 0])


def test_only_answers_are_trained_on(processor):
    batch = packing.make_batch(processor.tokenizer, np.random.default_rng(0), 1, 2, 2)
    assert [group.ids.shape[1] for group in batch.groups] == [8, 3, 2]
    for group in batch.groups:
        for ids, labels in zip(group.ids[0], group.labels[0], strict=True):
            text = processor.tokenizer.decode(labels[labels != packing.IGNORE])
            assert text.endswith("<|im_end|>")
            assert "please" not in text
            assert "which" not in text
            assert torch.equal(ids[labels != packing.IGNORE], labels[labels != packing.IGNORE])
