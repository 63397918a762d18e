"""Qwen2-VL, as lmms-eval's wrapper ``qwen2_vl`` runs it (it has no chat wrapper for this family)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from lmms_eval.api.instance import Instance
from lmms_eval.models.model_utils.media_encoder import encode_image_to_data_url
from lmms_eval.protocol import ChatMessages

from kvcomp_eval.model_wrappers.qwen import QwenArguments, QwenVL


@dataclass(frozen=True, kw_only=True)
class Qwen2Arguments(QwenArguments):
    """Arguments of Qwen2-VL.

    Parameters
    ----------
    jpeg_quality : int
        Images are encoded as JPEG of this quality before the model sees them, as in lmms-eval's wrapper; 0: not.
    """

    pretrained: str = "Qwen/Qwen2-VL-7B-Instruct"
    min_pixels: int | None = 3136
    max_pixels: int | None = 602112
    system_prompt: str | None = "You are a helpful assistant."
    jpeg_quality: int = 85

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.jpeg_quality <= 100:
            raise ValueError(f"jpeg_quality={self.jpeg_quality} must lie in 0 to 100; 0 leaves images as they are.")


class Qwen2VL(QwenVL):
    """Qwen2-VL with a compressed KV cache, chat style.

    Videos are read at two frames per second and thinned to ``max_num_frames``.
    """

    family = "qwen2_vl"
    arguments: Qwen2Arguments
    arguments_class = Qwen2Arguments
    model_classes = {"qwen2_vl": "Qwen2VLForConditionalGeneration"}  # noqa: RUF012
    stock_dtype = "auto"
    stock_device_map = "cuda"
    max_new_tokens = 128
    explicit_none = ("temperature", "top_p")
    ignored_stops = ()

    def sort_key(self, request: Instance) -> Any:
        context = request.args[0]
        return -len(self.tokenizer.encode(context)), context

    def image_limits(self) -> dict[str, Any]:
        return self.arguments.limits()

    def edit(self, chat: ChatMessages) -> ChatMessages:
        for message in chat.messages:
            for part in message.content:
                if part.type == "text":
                    part.text = part.text.replace("<image>", "")
        return super().edit(chat)

    def image(self, element: dict[str, Any]) -> Any:
        quality = self.arguments.jpeg_quality
        if quality:
            url = encode_image_to_data_url(
                element["image"], image_format="JPEG", mime_type="image/jpeg", convert_rgb=True, quality=quality
            )
            element = {**element, "image": url}
        return super().image(element)

    def process(self, texts: list[str], images: list[Any] | None, videos: list[Any]) -> Any:
        clips = []
        for frames, _ in videos:
            kept = np.unique(np.linspace(0, len(frames) - 1, self.arguments.max_num_frames, dtype=int))
            clips.append(frames[kept.tolist()])
        return self.processor(
            text=texts, images=images, videos=clips or None, padding=True, padding_side="left", return_tensors="pt"
        )
