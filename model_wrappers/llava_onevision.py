"""LLaVA-OneVision of transformers, as lmms-eval's ``llava_hf`` runs it, with batches and videos."""

from __future__ import annotations

from dataclasses import dataclass

from kvcomp_eval.model_wrappers.llava import Llava, LlavaArguments


@dataclass(frozen=True, kw_only=True)
class OnevisionArguments(LlavaArguments):
    """Arguments of LLaVA-OneVision.

    Parameters
    ----------
    max_frames_num : int
        Frames of a video, evenly spaced.
    """

    pretrained: str = "llava-hf/llava-onevision-qwen2-7b-ov-hf"
    max_frames_num: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_frames_num < 1:
            raise ValueError(f"max_frames_num={self.max_frames_num} must be at least 1.")


class LlavaOnevision(Llava):
    """LLaVA-OneVision with a compressed KV cache."""

    family = "llava_onevision"
    arguments: OnevisionArguments
    arguments_class = OnevisionArguments
    model_classes = {"llava_onevision": "LlavaOnevisionForConditionalGeneration"}  # noqa: RUF012
    reads_video = True

    def max_frames(self) -> int:
        return self.arguments.max_frames_num
