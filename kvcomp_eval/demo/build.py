"""The tiny stock-architecture model, its WordLevel tokenizer and its processor.

Sizes: 6 text layers, hidden 128, 4 query and 2 key/value heads of dimension 32; a ViT of 3 blocks,
hidden 64, window 56 pixels, full attention in the last block.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from kvcomp_eval.demo.prompts import vocabulary
from kvcomp_eval.demo.scenes import CELL, MAX_GRID

PAD, END, START = "<|endoftext|>", "<|im_end|>", "<|im_start|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE, VIDEO, UNKNOWN = "<|image_pad|>", "<|video_pad|>", "<|unknown|>"
SPECIAL_TOKENS = (PAD, END, START, VISION_START, VISION_END, IMAGE, VIDEO, UNKNOWN)
# Maps a pixel value in [0, 1] to [-1, 1].
PIXEL_MEAN, PIXEL_STD = 0.5, 0.5

# System messages are dropped: the model was trained without one.
CHAT_TEMPLATE = (
    "{%- for message in messages if message['role'] != 'system' -%}"
    "<|im_start|>{{ message['role'] }}\n"
    "{%- if message['content'] is string -%}{{ ' ' + message['content'] }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' or 'image' in part -%}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- elif part['type'] == 'video' or 'video' in part -%}<|vision_start|><|video_pad|><|vision_end|>"
    "{%- elif 'text' in part -%}{{ ' ' + part['text'] }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the WordLevel tokenizer: lower case, split at white space and punctuation."""
    ids = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *vocabulary()))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        additional_special_tokens=[START, VISION_START, VISION_END, IMAGE, VIDEO],
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_processor() -> Qwen2_5_VLProcessor:
    """Build the stock processor; scenes of 1 x 1 to 5 x 5 cells pass through without resizing."""
    size = {"shortest_edge": CELL * CELL, "longest_edge": 4 * (CELL * MAX_GRID) ** 2}
    common = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "size": size}
    normalise = {"image_mean": [PIXEL_MEAN] * 3, "image_std": [PIXEL_STD] * 3}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**common, **normalise),
        tokenizer=build_tokenizer(),
        video_processor=Qwen2VLVideoProcessor(**common, **normalise),
        chat_template=CHAT_TEMPLATE,
    )


def build_config(tokenizer: PreTrainedTokenizerFast, **text_overrides: int) -> Qwen2_5_VLConfig:
    """Return the model's configuration; `text_overrides` shrink it for tests."""
    token_id = tokenizer.convert_tokens_to_ids
    hidden = text_overrides.get("hidden_size", 128)
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.05,
        "rope_parameters": {
            "rope_type": "default",
            "type": "mrope",
            "mrope_section": [4, 6, 6],
            "rope_theta": 1e4,
        },
        "bos_token_id": None,
        "eos_token_id": token_id(END),
        "pad_token_id": token_id(PAD),
        "tie_word_embeddings": True,
        **text_overrides,
    }
    vision = {
        "depth": 3,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_heads": 2,
        "out_hidden_size": hidden,
        "fullatt_block_indexes": [2],
        "window_size": CELL,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "initializer_range": 0.1,
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token_id(IMAGE),
        video_token_id=token_id(VIDEO),
        vision_start_token_id=token_id(VISION_START),
        vision_end_token_id=token_id(VISION_END),
        tie_word_embeddings=True,
    )


def build_model(config: Qwen2_5_VLConfig, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """Build the model in float32 with seeded random weights."""
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=config.text_config.eos_token_id,
        pad_token_id=config.text_config.pad_token_id,
    )
    return model


def export(model: Qwen2_5_VLForConditionalGeneration, folder: Path) -> int:
    """Save model (float16 safetensors) and processor to `folder`; return the total size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    half = build_model(model.config, seed=0).half()
    half.load_state_dict({name: tensor.half() for name, tensor in model.state_dict().items()})
    half.save_pretrained(folder)
    build_processor().save_pretrained(folder)
    return sum(file.stat().st_size for file in folder.iterdir())
