"""Qwen3-VL, as lmms-eval's chat wrapper ``qwen3_vl`` runs it, with image limits honoured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcomp_eval.model_wrappers.qwen import QwenArguments, QwenVL


@dataclass(frozen=True, kw_only=True)
class Qwen3Arguments(QwenArguments):
    """Arguments of Qwen3-VL.

    Parameters
    ----------
    fps : float, optional
        Frames per second that are read from a video (at most ``max_num_frames``), instead of evenly spaced ones.
    total_pixels : int, optional
        Limit of a whole video, instead of ``max_pixels`` for each frame.
    enable_thinking : bool, optional
        Variable of the chat template; if true, the thoughts are cut from the answer.
    """

    pretrained: str = "Qwen/Qwen3-VL-4B-Instruct"
    system_prompt: str | None = "You are a helpful assistant."
    fps: float | None = None
    total_pixels: int | None = None
    enable_thinking: bool | None = None


class Qwen3VL(QwenVL):
    """Qwen3-VL with a compressed KV cache.

    lmms-eval's chat wrapper lets images of any size through; here ``min_pixels`` and ``max_pixels`` hold, as in its
    simple wrapper. Images between the limits give the same pixels in all three.
    """

    family = "qwen3_vl"
    arguments: Qwen3Arguments
    arguments_class = Qwen3Arguments
    model_classes = {"qwen3_vl": "Qwen3VLForConditionalGeneration"}  # noqa: RUF012
    stock_dtype = "bfloat16"
    stock_device_map = "auto"
    max_new_tokens = 128
    explicit_none = ()
    patch_size = 16

    def image_limits(self) -> dict[str, Any]:
        return self.arguments.limits()

    def video_limits(self) -> dict[str, Any]:
        arguments = self.arguments
        limits: dict[str, Any] = arguments.limits()
        if arguments.total_pixels is not None:
            limits.pop("max_pixels", None)
            limits["total_pixels"] = arguments.total_pixels
        if arguments.fps is not None:
            return {**limits, "fps": arguments.fps, "max_frames": arguments.max_num_frames}
        frames = "max_frames" if arguments.total_pixels is not None else "nframes"
        return {**limits, frames: arguments.max_num_frames}

    def template_arguments(self) -> dict[str, Any]:
        thinking = self.arguments.enable_thinking
        return {} if thinking is None else {"enable_thinking": thinking}

    def process_arguments(self) -> dict[str, Any]:
        return {"do_resize": False, "do_sample_frames": False}

    def finish(self, answer: str) -> str:
        return answer.partition("</think>")[2].strip() if self.arguments.enable_thinking else answer
