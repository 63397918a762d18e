"""Tiny random-init models and processors of the five families, built in memory with no download.

Each model has 0.2-0.3 M parameters, three text layers, 8 query and 2 KV heads of dimension 8, and a byte-level
tokenizer. Weights are scaled up (``initializer_range`` 0.25), so that attention is far from uniform and every error
shows.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_onevision", "llava_next")
QWEN_FAMILIES = FAMILIES[:3]
VIDEO_FAMILIES = FAMILIES[:4]
"""LLaVA-NeXT takes no video."""

IMAGE_SIZES = ((84, 112), (140, 70), (56, 168))
"""Width x height of the standard test images; three different token counts in every family."""

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|im_start|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<image>",
    "<video>",
)

QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAVA_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>\n{% elif part['type'] == 'video' %}<video>\n"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TEXT = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.25,
}
MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}


def build(family: str, seed: int = 0) -> tuple[Any, Any]:
    """Build a fresh ``(model, processor)`` of a family: fp32, eval mode, sdpa, no end-of-sequence token."""
    processor = build_processor(family)
    torch.manual_seed(seed)
    model = _MODELS[family](processor.tokenizer)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    model.generation_config.do_sample = False
    return model.float().eval(), processor


@functools.lru_cache
def shared(family: str, seed: int = 0) -> tuple[Any, Any]:
    """Return one cached ``(model, processor)`` per family, for tests that leave it as they found it."""
    return build(family, seed)


def build_processor(family: str) -> Any:
    """Build the processor of a family with a tiny byte-level tokenizer (left padding) and a chat template."""
    return _PROCESSORS[family](_tokenizer())


def images(count: int = 3, sizes: Sequence[tuple[int, int]] = IMAGE_SIZES, seed: int = 0) -> list[Image.Image]:
    """Make noise images (width x height as given, in turn), the same for the same seed."""
    rng = np.random.default_rng(seed)
    chosen = [sizes[index % len(sizes)] for index in range(count)]
    return [Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in chosen]


def video(frames: int = 4, size: tuple[int, int] = (84, 56), seed: int = 0) -> np.ndarray:
    """Make a noise video, uint8 [frames, height, width, 3]."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (frames, size[1], size[0], 3), dtype=np.uint8)


def prompt(family: str, text: str, num_images: int = 0, num_videos: int = 0) -> str:
    """Write a prompt with its placeholders first, then the text."""
    if family in QWEN_FAMILIES:
        image, clip = "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
    else:
        image, clip = "<image>", "<video>"
    return image * num_images + clip * num_videos + text


def prompt_inputs(
    family: str, processor: Any, images_per_row: Sequence[Sequence[Image.Image]], texts: Sequence[str]
) -> transformers.BatchFeature:
    """Tokenize one prompt per row, its images first; more than one row is left padded, rows may have no image."""
    rows = [prompt(family, text, len(row)) for row, text in zip(images_per_row, texts, strict=True)]
    flat = [image for row in images_per_row for image in row]
    return processor(text=rows, images=flat or None, padding=True, return_tensors="pt")


def video_inputs(
    family: str, processor: Any, videos: Sequence[np.ndarray], texts: Sequence[str]
) -> transformers.BatchFeature:
    """Tokenize one prompt per row with one video each, all frames kept; more than one row is left padded."""
    if family not in VIDEO_FAMILIES:
        raise ValueError(f"{family} takes no video; families with video: {', '.join(VIDEO_FAMILIES)}")
    rows = [prompt(family, text, num_videos=1) for text in texts]
    extra: dict[str, Any] = {}
    if family in QWEN_FAMILIES:
        extra["do_sample_frames"] = False
        extra["video_metadata"] = [
            {"fps": 2.0, "total_num_frames": len(clip), "frames_indices": list(range(len(clip)))} for clip in videos
        ]
    return processor(text=rows, videos=list(videos), padding=True, return_tensors="pt", **extra)


def save(family: str, folder: str | Path, seed: int = 0) -> Path:
    """Save model and processor (with a chat template) so that ``from_pretrained(folder)`` loads both."""
    model, processor = build(family, seed)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return Path(folder)


def _tokenizer() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(alphabet)}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=list(SPECIAL_TOKENS[2:]),
        padding_side="left",
    )
    return tokenizer


def _qwen_ids(tokenizer: Any) -> dict[str, Any]:
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return {key: tokenizer.convert_tokens_to_ids(token) for key, token in names.items()}


def _text(tokenizer: Any, **extra: Any) -> dict[str, Any]:
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    return {**TEXT, **ends, **extra}


def _qwen2_vl(tokenizer: Any) -> Any:
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
    config = transformers.Qwen2VLConfig(
        text_config=_text(tokenizer, rope_parameters={**MROPE, "type": "mrope"}),
        vision_config=vision,
        **_qwen_ids(tokenizer),
    )
    return transformers.Qwen2VLForConditionalGeneration(config)


def _qwen2_5_vl(tokenizer: Any) -> Any:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "fullatt_block_indexes": [1],
        "patch_size": 14,
        "window_size": 56,
    }
    config = transformers.Qwen2_5_VLConfig(
        text_config=_text(tokenizer, rope_parameters={**MROPE, "type": "mrope"}),
        vision_config=vision,
        **_qwen_ids(tokenizer),
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def _qwen3_vl(tokenizer: Any) -> Any:
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "deepstack_visual_indexes": [0, 1],
        "patch_size": 16,
        "num_position_embeddings": 64,
    }
    config = transformers.Qwen3VLConfig(
        text_config=_text(tokenizer, head_dim=8, rope_parameters={**MROPE, "mrope_interleaved": True}),
        vision_config=vision,
        **_qwen_ids(tokenizer),
    )
    return transformers.Qwen3VLForConditionalGeneration(config)


def _llava_onevision(tokenizer: Any) -> Any:
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
        "vision_use_head": False,
    }
    config = transformers.LlavaOnevisionConfig(
        text_config=_text(tokenizer, model_type="qwen2"),
        vision_config=vision,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=ONEVISION_PINPOINTS,
        vision_feature_select_strategy="full",
    )
    return transformers.LlavaOnevisionForConditionalGeneration(config)


def _llava_next(tokenizer: Any) -> Any:
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
        "projection_dim": 32,
    }
    config = transformers.LlavaNextConfig(
        text_config=_text(tokenizer, model_type="mistral", sliding_window=None, head_dim=8),
        vision_config=vision,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=NEXT_PINPOINTS,
        vision_feature_select_strategy="default",
        image_seq_length=16,
    )
    return transformers.LlavaNextForConditionalGeneration(config)


ONEVISION_PINPOINTS = [[56 * rows, 56 * columns] for rows in (1, 2, 3) for columns in (1, 2, 3)]
NEXT_PINPOINTS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]


def _qwen_processor(kind: type, video_processor: type, patch: int, tokenizer: Any) -> Any:
    unit = (2 * patch) ** 2
    sizes = {"shortest_edge": unit, "longest_edge": 64 * unit}
    return kind(
        image_processor=transformers.Qwen2VLImageProcessor(patch_size=patch, merge_size=2, size=sizes),
        video_processor=video_processor(patch_size=patch, merge_size=2, size=sizes),
        tokenizer=tokenizer,
        chat_template=QWEN_TEMPLATE,
    )


def _llava_onevision_processor(tokenizer: Any) -> Any:
    size = {"height": 56, "width": 56}
    return transformers.LlavaOnevisionProcessor(
        image_processor=transformers.LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=ONEVISION_PINPOINTS),
        video_processor=transformers.LlavaOnevisionVideoProcessor(size=size),
        tokenizer=tokenizer,
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=LLAVA_TEMPLATE,
    )


def _llava_next_processor(tokenizer: Any) -> Any:
    return transformers.LlavaNextProcessor(
        image_processor=transformers.LlavaNextImageProcessor(
            size={"shortest_edge": 56},
            crop_size={"height": 56, "width": 56},
            image_grid_pinpoints=NEXT_PINPOINTS,
        ),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=LLAVA_TEMPLATE,
    )


_MODELS: dict[str, Callable[[Any], Any]] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "llava_onevision": _llava_onevision,
    "llava_next": _llava_next,
}
_PROCESSORS: dict[str, Callable[[Any], Any]] = {
    "qwen2_vl": lambda tokenizer: _qwen_processor(
        transformers.Qwen2VLProcessor, transformers.Qwen2VLVideoProcessor, 14, tokenizer
    ),
    "qwen2_5_vl": lambda tokenizer: _qwen_processor(
        transformers.Qwen2_5_VLProcessor, transformers.Qwen2VLVideoProcessor, 14, tokenizer
    ),
    "qwen3_vl": lambda tokenizer: _qwen_processor(
        transformers.Qwen3VLProcessor, transformers.Qwen3VLVideoProcessor, 16, tokenizer
    ),
    "llava_onevision": _llava_onevision_processor,
    "llava_next": _llava_next_processor,
}


def _self_check() -> None:
    """Stock generation of 12 tokens: alone, left padded, a row without image, video, and from a saved folder."""
    for family in FAMILIES:
        model, processor = build(family)
        pictures, texts = images(), ["What is it?", "And this one, please?", "Say more."]
        one = prompt_inputs(family, processor, [pictures[:1]], texts[:1])
        batch = prompt_inputs(family, processor, [[picture] for picture in pictures], texts)
        mixed = prompt_inputs(family, processor, [pictures[:2], [], pictures[2:]], texts)
        single = model.generate(**one, max_new_tokens=12)[:, one.input_ids.shape[1] :]
        many = model.generate(**batch, max_new_tokens=12)[:, batch.input_ids.shape[1] :]
        print(family, sum(p.numel() for p in model.parameters()), one.input_ids.shape, batch.attention_mask.sum(1))
        assert single.shape == (1, 12)
        assert torch.equal(single[0], many[0])
        assert model.generate(**mixed, max_new_tokens=12).shape[1] == mixed.input_ids.shape[1] + 12
        if family in VIDEO_FAMILIES:
            clip = video_inputs(family, processor, [video()], ["Why?"])
            print("  video", clip.input_ids.shape, model.generate(**clip, max_new_tokens=12).shape)
        with tempfile.TemporaryDirectory() as folder:
            save(family, folder)
            again = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
            loaded = transformers.AutoProcessor.from_pretrained(folder)
            inputs = prompt_inputs(family, loaded, [pictures[:1]], texts[:1])
            assert torch.equal(again.generate(**inputs, max_new_tokens=12)[:, inputs.input_ids.shape[1] :], single)


if __name__ == "__main__":
    _self_check()
