"""Cells of visual tokens: painting a part of an image changes the features of the tokens whose cells are there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from PIL import Image, ImageDraw

from kvcomp_eval.heads.cells import visual_cells
from tests.families import FAMILIES, build, prompt_inputs

SIZES = [(168, 112), (70, 210), (150, 150), (336, 100)]
#: Boxes in pixels of the image, as shares of its width and height.
BOXES = [(0.0, 0.0, 0.3, 0.4), (0.55, 0.1, 0.95, 0.45), (0.3, 0.7, 0.8, 1.0)]
#: Resizing blurs over some pixels of the source, so the painted box is widened or narrowed by this many.
BLUR = 10


@pytest.fixture(scope="module")
def blinkered():
    """Models whose vision towers let no patch see another one."""
    models = {}
    for family in FAMILIES:
        model, processor = build(family)
        for name, parameter in model.named_parameters():
            if ("visual." in name or "vision_tower." in name) and (".attn.proj." in name or ".out_proj." in name):
                parameter.data.zero_()
        models[family] = model, processor
    return models


@torch.inference_mode()
def features(model, inputs):
    """Embeddings of the image tokens, [n, hidden]."""
    is_image = inputs["input_ids"][0] == model.config.image_token_id
    return model(**inputs, output_hidden_states=True).hidden_states[0][0, is_image]


def picture(size, box=None):
    image = Image.new("RGB", size, (90, 120, 60))
    if box:
        scale = [*size, *size]
        ImageDraw.Draw(image).rectangle([round(b * s) for b, s in zip(box, scale, strict=True)], (255, 30, 200))
    return image


def widened(box, size, pixels):
    x, y = pixels / size[0], pixels / size[1]
    return box[0] - x, box[1] - y, box[2] + x, box[3] + y


def check(family, model, processor, size, box, slack=BLUR):
    plain = prompt_inputs(family, processor, [[picture(size)]], ["?"])
    painted = prompt_inputs(family, processor, [[picture(size, box)]], ["?"])
    changed = ((features(model, plain) - features(model, painted)).abs() > 1e-5).any(1)
    cells = visual_cells(model, plain)
    surely = cells.overlapping(0, widened(box, size, -slack))
    possibly = cells.overlapping(0, widened(box, size, slack))
    assert surely.any()
    assert not possibly.all()
    assert changed[surely].all()
    assert not changed[~possibly].any()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("box", BOXES)
def test_painted_tokens_are_those_of_the_box(blinkered, family, size, box):
    check(family, *blinkered[family], size, box)


@pytest.mark.parametrize("size", [(336, 224), (300, 300)])
@pytest.mark.parametrize("box", BOXES[:2])
def test_onevision_tiles_that_are_shrunk(size, box, blinkered):
    model, processor = blinkered["llava_onevision"]
    whole = len(visual_cells(model, prompt_inputs("llava_onevision", processor, [[picture(size)]], ["?"])).image)
    stock = model.config.vision_aspect_ratio, processor.vision_aspect_ratio
    model.config.vision_aspect_ratio = processor.vision_aspect_ratio = "anyres_max_2"
    try:
        inputs = prompt_inputs("llava_onevision", processor, [[picture(size)]], ["?"])
        assert len(visual_cells(model, inputs).image) < whole
        check("llava_onevision", model, processor, size, box, slack=36)
    finally:
        model.config.vision_aspect_ratio, processor.vision_aspect_ratio = stock


@pytest.mark.parametrize("family", FAMILIES)
def test_second_image_has_its_own_cells(blinkered, family):
    model, processor = blinkered[family]
    box = BOXES[1]
    first, second = picture(SIZES[0]), picture(SIZES[2])
    plain = processor_inputs(family, processor, [first, second])
    painted = processor_inputs(family, processor, [first, picture(SIZES[2], box)])
    changed = ((features(model, plain) - features(model, painted)).abs() > 1e-5).any(1)
    cells = visual_cells(model, plain)
    assert changed[cells.overlapping(1, widened(box, SIZES[2], -BLUR))].all()
    assert not changed[~cells.overlapping(1, widened(box, SIZES[2], BLUR))].any()
    assert not cells.overlapping(0, box)[cells.image == 1].any()


def processor_inputs(family, processor, images):
    """OneVision cuts up no image of a nested list of several; so do its wrappers."""
    placeholder = "<image>" if family.startswith("llava") else "<|vision_start|><|image_pad|><|vision_end|>"
    return processor(text=[placeholder * len(images) + "?"], images=[images], return_tensors="pt")


def test_ends_of_rows_lie_nowhere(blinkered):
    model, processor = blinkered["llava_next"]
    cells = visual_cells(model, prompt_inputs("llava_next", processor, [[picture(SIZES[0])]], ["?"]))
    everywhere = cells.overlapping(0, (-1.0, -1.0, 2.0, 2.0))
    assert 0 < (~everywhere).sum() < everywhere.sum()
    assert cells.boxes[~everywhere].isnan().all()


def test_touching_is_not_overlapping(blinkered):
    model, processor = blinkered["qwen2_5_vl"]
    cells = visual_cells(model, prompt_inputs("qwen2_5_vl", processor, [[picture((280, 280))]], ["?"]))
    side = round(len(cells.image) ** 0.5)
    inside = cells.overlapping(0, (2 / side, 3 / side, 4 / side, 5 / side)).view(side, side)
    assert inside.nonzero().tolist() == [[3, 2], [3, 3], [4, 2], [4, 3]]


def test_unknown_families_are_refused():
    model = SimpleNamespace(config=SimpleNamespace(model_type="mllama"))
    with pytest.raises(ValueError, match=r"For a mllama it is not known .*families are: qwen2_vl, "):
        visual_cells(model, {})


def test_another_layout_is_refused(blinkered):
    model, processor = blinkered["qwen2_5_vl"]
    inputs = prompt_inputs("qwen2_5_vl", processor, [[picture((280, 280))]], ["?"])
    inputs["image_grid_thw"] = inputs["image_grid_thw"][:, [0, 1, 1]] + torch.tensor([0, 0, 2])
    with pytest.raises(RuntimeError, match=r"cells, but the prompt has \d+ image tokens"):
        visual_cells(model, inputs)
