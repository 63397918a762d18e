"""LLaVA-NeXT (1.6) of transformers, as lmms-eval's ``llava_hf`` runs it, with batches."""

from __future__ import annotations

from dataclasses import dataclass

from kvcomp_eval.model_wrappers.llava import Llava, LlavaArguments


@dataclass(frozen=True, kw_only=True)
class NextArguments(LlavaArguments):
    """Arguments of LLaVA-NeXT."""

    pretrained: str = "llava-hf/llava-v1.6-mistral-7b-hf"


class LlavaNext(Llava):
    """LLaVA-NeXT with a compressed KV cache."""

    family = "llava_next"
    arguments_class = NextArguments
    model_classes = {"llava_next": "LlavaNextForConditionalGeneration"}  # noqa: RUF012
    reads_video = False
