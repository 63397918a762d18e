"""Method ``full`` gives the tokens of lmms-eval's own wrapper of the family, on the same prompt and pixels."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from PIL import Image

from tests.families import FAMILIES, QWEN_FAMILIES, images
from tests.wrappers.requests import chat_request, content, run, simple_request, video

STOCK = {
    "qwen2_vl": ("simple.qwen2_vl", "Qwen2_VL"),
    "qwen2_5_vl": ("chat.qwen2_5_vl", "Qwen2_5_VL"),
    "qwen3_vl": ("chat.qwen3_vl", "Qwen3_VL"),
    "llava_onevision": ("chat.llava_hf", "LlavaHf"),
    "llava_next": ("chat.llava_hf", "LlavaHf"),
}
LARGE = ((300, 200), (180, 250))
"""Sizes between the pixel limits below, where all wrappers resize alike."""
LIMITS = {"min_pixels": 3136, "max_pixels": 200704}


@pytest.fixture(scope="module")
def stock(checkpoint):
    """lmms-eval's wrapper of a family on the same weights in float32 (it loads some in bfloat16)."""
    made: dict[str, Any] = {}

    def make(family: str, **arguments: Any) -> Any:
        key = f"{family} {arguments}"
        if key not in made:
            module, name = STOCK[family]
            kind = getattr(importlib.import_module(f"lmms_eval.models.{module}"), name)
            made[key] = kind(pretrained=checkpoint(family), device="cpu", device_map="cpu", **arguments)
            made[key]._model = type(made[key]._model).from_pretrained(checkpoint(family), dtype=torch.float32).eval()
        return made[key]

    return make


def stock_tokens(model: Any, messages: list[list[dict[str, Any]]], **generation: Any) -> list[list[int]]:
    """Tokens that lmms-eval's wrapper generates for documents."""
    recorded: dict[str, list[int]] = {}
    original = model.model.generate

    def generate(**inputs: Any) -> Any:
        output = original(**inputs)
        new = output[:, inputs["input_ids"].shape[1] :].tolist()
        recorded[str(len(recorded))] = new[0]
        return output

    model._model.generate = generate
    make = simple_request if model.is_simple else chat_request
    try:
        for doc_id, document in enumerate(messages):
            run(model, [make(doc_id, document, **generation)])
    finally:
        del model._model.generate
    return list(recorded.values())


def our_tokens(model: Any, messages: list[list[dict[str, Any]]], lines: Any, **generation: Any) -> list[list[int]]:
    """Tokens that our wrapper reports for documents."""
    run(model, [chat_request(doc_id, document, **generation) for doc_id, document in enumerate(messages)])
    return [line["answer_tokens"] for line in sorted(lines.read(), key=lambda line: line["doc_id"])]


@pytest.mark.parametrize("family", FAMILIES)
def test_full_gives_the_tokens_of_the_stock_wrapper(family, stock, wrapper, lines):
    first, second = images(2, LARGE)
    documents = [
        content(first, "What is shown here?"),
        content(first, second, "What changed?"),
        content(second, "Describe it."),
    ]
    limits = LIMITS if family in QWEN_FAMILIES else {}
    expected = stock_tokens(stock(family, **limits), documents, max_new_tokens=16)
    got = our_tokens(wrapper(f"{family}_full", report_path=lines.path, **limits), documents, lines, max_new_tokens=16)
    assert got == expected
    assert len({tuple(tokens) for tokens in got}) == 3


@pytest.mark.parametrize("family", QWEN_FAMILIES)
def test_text_only_document_as_in_the_stock_wrapper(family, stock, wrapper, lines):
    document = [content("Only words, no image.")]
    expected = stock_tokens(stock(family, **LIMITS), document)
    assert our_tokens(wrapper(f"{family}_full", report_path=lines.path, **LIMITS), document, lines) == expected


@pytest.mark.parametrize("family", QWEN_FAMILIES)
def test_video_frames_as_in_the_stock_wrapper(family, stock, wrapper, lines, carphone):
    document = [content(video(carphone), "What happens?")]
    arguments = {"min_pixels": 3136, "max_pixels": 12544, "max_num_frames": 6}
    expected = stock_tokens(stock(family, **arguments), document)
    assert our_tokens(wrapper(f"{family}_full", report_path=lines.path, **arguments), document, lines) == expected


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_video_by_fps_as_in_the_stock_wrapper(family, stock, wrapper, lines, carphone):
    document = [content(video(carphone), "What happens?")]
    arguments = {"min_pixels": 3136, "max_pixels": 12544, "max_num_frames": 8, "fps": 2.0}
    expected = stock_tokens(stock(family, **arguments), document)
    assert our_tokens(wrapper(f"{family}_full", report_path=lines.path, **arguments), document, lines) == expected


def test_onevision_video_as_in_the_stock_simple_wrapper(checkpoint, wrapper, lines, carphone):
    from lmms_eval.models.simple.llava_hf import LlavaHf

    simple = LlavaHf(checkpoint("llava_onevision"), device="cpu", device_map="cpu", max_frames_num=5)
    frames = simple.load_video(carphone, 5)
    chat = [content(video(carphone), "What happens?")]
    ours = wrapper("llava_onevision_full", max_frames_num=5, report_path=lines.path)
    prompt = ours.processor.apply_chat_template(chat[0], tokenize=False, add_generation_prompt=True)
    inputs = simple._image_processor(videos=[frames], text=prompt, return_tensors="pt")
    expected = simple.model.generate(
        **inputs, max_new_tokens=8, do_sample=False, eos_token_id=ours.eot_token_id, pad_token_id=ours.eot_token_id
    )
    assert our_tokens(ours, chat, lines) == expected[:, inputs["input_ids"].shape[1] :].tolist()


def test_qwen2_vl_shows_images_through_jpeg_unless_told_otherwise(wrapper):
    noise = images(1, LARGE)[0]
    chat = [content(noise, "?")]
    pixels = [_pixels(wrapper("qwen2_vl_full", jpeg_quality=quality), chat[0]) for quality in (85, 0)]
    assert pixels[0].shape == pixels[1].shape
    assert not pixels[0].equal(pixels[1])


@pytest.mark.parametrize("family", QWEN_FAMILIES)
@pytest.mark.parametrize(("max_pixels", "patches"), [(100352, 100352), (401408, 401408)])
def test_image_limits_are_honoured(family, max_pixels, patches, wrapper):
    """A large image yields at most ``max_pixels``, a small one at least ``min_pixels``, in whole patches."""
    model = wrapper(f"{family}_full", min_pixels=50176, max_pixels=max_pixels)
    area = model.patch_size**2
    large = len(_pixels(model, content(Image.new("RGB", (1400, 980)), "?"))) * area
    small = len(_pixels(model, content(Image.new("RGB", (60, 60)), "?"))) * area
    assert 0.85 * patches <= large <= patches
    assert 50176 <= small <= 1.3 * 50176


def _pixels(model: Any, messages: list[dict[str, Any]]) -> Any:
    from kvcomp_eval.model_wrappers.messages import chat_messages

    return model.prepare([chat_messages(messages)])["pixel_values"]
