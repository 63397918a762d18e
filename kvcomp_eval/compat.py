"""The names that transformers renames between releases, in one place.

Everything else of the package imports transformers through its stable public names. Verified on 5.24.
"""

from __future__ import annotations

import inspect
from typing import Any

#: Keyword arguments of ``generate`` under which a cache may arrive (new name first).
CACHE_KEYWORDS = ("cache", "past_key_values")


def cache_keyword(model: Any) -> str:
    """Name under which this model's ``generate`` and ``forward`` take a cache (5.24 renamed it to ``cache``)."""
    parameters = inspect.signature(model.prepare_inputs_for_generation).parameters
    for name in CACHE_KEYWORDS:
        if name in parameters:
            return name
    raise TypeError(
        f"{type(model).__name__} takes none of {', '.join(CACHE_KEYWORDS)} in prepare_inputs_for_generation; "
        "kvcomp-eval supports transformers 5.24."
    )


def text_config(model: Any) -> Any:
    """Configuration of the text decoder, for multimodal and text-only models alike."""
    return model.config.get_text_config(decoder=True)


def set_text_attention(model: Any, name: str) -> None:
    """Switch the attention of the text decoder only; vision towers keep theirs."""
    has_text_config = "text_config" in getattr(model.config, "sub_configs", {})
    model.set_attn_implementation({"text_config": name} if has_text_config else name)


def visual_token_ids(config: Any) -> tuple[int, ...]:
    """Ids of the placeholder tokens that stand for image and video features in ``input_ids``."""
    names = ("image_token_id", "video_token_id")
    return tuple(token for name in names if (token := getattr(config, name, None)) is not None)
