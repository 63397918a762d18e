"""Qwen2.5-VL, as lmms-eval's chat wrapper ``qwen2_5_vl`` runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcomp_eval.model_wrappers.qwen import QwenArguments, QwenVL


@dataclass(frozen=True, kw_only=True)
class Qwen2_5Arguments(QwenArguments):
    """Arguments of Qwen2.5-VL.

    Parameters
    ----------
    fps : float, optional
        Frames per second that are read from a video, instead of ``max_num_frames`` evenly spaced ones.
    """

    pretrained: str = "Qwen/Qwen2.5-VL-3B-Instruct"
    fps: float | None = None


class Qwen2_5VL(QwenVL):
    """Qwen2.5-VL with a compressed KV cache.

    The processor applies the pixel limits of images, after qwen_vl_utils rounded their sides to whole patches, and the
    chat template writes the default system prompt; both as in lmms-eval's wrapper.
    """

    family = "qwen2_5_vl"
    arguments: Qwen2_5Arguments
    arguments_class = Qwen2_5Arguments
    model_classes = {"qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration"}  # noqa: RUF012
    stock_dtype = "bfloat16"
    stock_device_map = "auto"
    max_new_tokens = 128

    def video_limits(self) -> dict[str, Any]:
        if self.arguments.fps is not None:
            return {**self.arguments.limits(), "fps": self.arguments.fps}
        even = max(2, self.arguments.max_num_frames // 2 * 2)
        return {**self.arguments.limits(), "nframes": even}
