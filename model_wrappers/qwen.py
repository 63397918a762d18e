"""What the Qwen-VL families share: messages with pixel limits, media through qwen_vl_utils, one processor call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lmms_eval.protocol import ChatMessages
from qwen_vl_utils.vision_process import extract_vision_info, fetch_image

from kvcomp_eval.model_wrappers.arguments import Arguments
from kvcomp_eval.model_wrappers.base import ChatWrapper
from kvcomp_eval.model_wrappers.loading import DEMO
from kvcomp_eval.model_wrappers.messages import (
    with_interleaved_visuals,
    with_reasoning_prompt,
    with_system_prompt,
)
from kvcomp_eval.model_wrappers.video import qwen_video


@dataclass(frozen=True, kw_only=True)
class QwenArguments(Arguments):
    """Arguments of the Qwen-VL wrappers.

    Parameters
    ----------
    min_pixels, max_pixels : int, optional
        Limits of one image or video frame. The demo model has its own.
    max_num_frames : int
        Most frames of a video.
    system_prompt : str, optional
        System message, unless the document has one.
    interleave_visuals : bool
        Put images where the text says ``<image 1>``, ``<image 2>``.
    reasoning_prompt : str, optional
        Appended to the question.
    """

    min_pixels: int | None = 256 * 28 * 28
    max_pixels: int | None = 1605632
    max_num_frames: int = 32
    system_prompt: str | None = None
    interleave_visuals: bool = False
    reasoning_prompt: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_num_frames < 1:
            raise ValueError(f"max_num_frames={self.max_num_frames} must be at least 1.")
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels={self.min_pixels} is above max_pixels={self.max_pixels}; swap or drop one.")

    def limits(self) -> dict[str, int]:
        """Pixel limits that are set."""
        limits = {"min_pixels": self.min_pixels, "max_pixels": self.max_pixels}
        return {name: value for name, value in limits.items() if value is not None}


class QwenVL(ChatWrapper):
    """Shared by Qwen2-VL, Qwen2.5-VL and Qwen3-VL."""

    arguments: QwenArguments
    patch_size: ClassVar[int] = 14

    def __init__(self, **given: Any) -> None:
        if given.get("pretrained") == DEMO:  # the embedded model was trained at the limits in its processor
            given = {"min_pixels": "none", "max_pixels": "none", **given}
        super().__init__(**given)

    def processor_arguments(self) -> dict[str, Any]:
        return self.arguments.limits()

    def image_limits(self) -> dict[str, Any]:
        """Keys that every image element carries."""
        return {}

    def video_limits(self) -> dict[str, Any]:
        """Keys that every video element carries."""
        return self.arguments.limits()

    def edit(self, chat: ChatMessages) -> ChatMessages:
        """Apply the prompt arguments to a conversation."""
        arguments = self.arguments
        if arguments.interleave_visuals:
            chat = with_interleaved_visuals(chat)
        chat = with_reasoning_prompt(chat, arguments.reasoning_prompt)
        return with_system_prompt(chat, arguments.system_prompt)

    def template_arguments(self) -> dict[str, Any]:
        """Variables of the chat template."""
        return {}

    def prepare(self, chats: Sequence[ChatMessages]) -> Any:
        conversations = [
            self.edit(chat).to_hf_messages(video_kwargs=self.video_limits(), image_kwargs=self.image_limits())
            for chat in chats
        ]
        texts = self.processor.apply_chat_template(
            conversations, tokenize=False, add_generation_prompt=True, **self.template_arguments()
        )
        elements = extract_vision_info(conversations)
        images = [self.image(element) for element in elements if "image" in element]
        videos = [qwen_video(element, self.patch_size) for element in elements if "video" in element]
        return self.process(texts, images or None, videos)

    def image(self, element: dict[str, Any]) -> Any:
        """Load and resize one image."""
        return fetch_image(element, image_patch_size=self.patch_size)

    def process(self, texts: list[str], images: list[Any] | None, videos: list[Any]) -> Any:
        """Call the processor.

        Parameters
        ----------
        texts : list of str
        images : list of PIL images, or None
        videos : list of (Tensor [T, 3, H, W], metadata)
        """
        return self.processor(
            text=texts,
            images=images,
            videos=[frames for frames, _ in videos] or None,
            video_metadata=[metadata for _, metadata in videos] or None,
            padding=True,
            padding_side="left",
            return_tensors="pt",
            **self.process_arguments(),
        )

    def process_arguments(self) -> dict[str, Any]:
        """Further arguments of the processor call."""
        return {}
