"""What the LLaVA families of transformers share, as lmms-eval's chat wrapper ``llava_hf`` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lmms_eval.api.instance import Instance
from lmms_eval.protocol import ChatMessages

from kvcomp_eval.model_wrappers.arguments import Arguments
from kvcomp_eval.model_wrappers.base import ChatWrapper
from kvcomp_eval.model_wrappers.video import llava_video


@dataclass(frozen=True, kw_only=True)
class LlavaArguments(Arguments):
    """Arguments of the LLaVA wrappers.

    Parameters
    ----------
    chat_template : str, optional
        Template, or file that holds one, instead of the processor's.
    """

    chat_template: str | None = None

    def template(self) -> dict[str, str]:
        """Arguments of ``apply_chat_template``."""
        if self.chat_template is None:
            return {}
        is_file = "{" not in self.chat_template
        return {"chat_template": Path(self.chat_template).read_text() if is_file else self.chat_template}


class Llava(ChatWrapper):
    """Shared by LLaVA-OneVision and LLaVA-NeXT."""

    arguments: LlavaArguments
    stock_dtype = "auto"
    stock_device_map = "cuda"
    max_new_tokens = 1024
    explicit_none = ("temperature", "top_p")
    #: Whether the model reads videos.
    reads_video: ClassVar[bool]

    def sort_key(self, request: Instance) -> Any:
        return 0

    def prepare(self, chats: Sequence[ChatMessages]) -> Any:
        template = self.arguments.template()
        texts = [
            self.processor.apply_chat_template(
                chat.model_dump()["messages"], tokenize=False, add_generation_prompt=True, **template
            )
            for chat in chats
        ]
        parts = [part for chat in chats for message in chat.messages for part in message.content]
        images = [part.url for part in parts if part.type == "image"]
        videos = [self.video(part) for part in parts if part.type == "video"]
        return self.processor(
            text=texts, images=images or None, videos=videos or None, padding=True, return_tensors="pt"
        )

    def video(self, part: Any) -> Any:
        """Read the frames of one video, uint8 [T, H, W, 3]."""
        if not self.reads_video:
            raise ValueError(f"The document has a video, and {self.family} reads images only.")
        return llava_video(part.url, self.max_frames(), part.start_time, part.end_time)

    def max_frames(self) -> int:
        """Frames of a video."""
        return 0

    def _to_device(self, inputs: Any) -> Any:
        return inputs.to(self.device, self.model.dtype)

    def _pad_token_id(self) -> int:
        return self.eot_token_id
