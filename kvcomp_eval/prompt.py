"""What each prompt token is: text, visual or padding; per sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvcomp_eval.compat import visual_token_ids


@dataclass(frozen=True)
class Prompt:
    """Token kinds of a left-padded batch of prompts.

    Parameters
    ----------
    visual : Tensor [B, N], bool
        True where a token stands for an image or video feature.
    starts : tuple of int
        Per sample, the number of left-padding tokens; real tokens are ``starts[b]:N``.
    """

    visual: Tensor
    starts: tuple[int, ...]

    @property
    def batch_size(self) -> int:
        return self.visual.shape[0]

    @property
    def padded_length(self) -> int:
        return self.visual.shape[1]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Real tokens per sample."""
        return tuple(self.padded_length - start for start in self.starts)

    def sample_visual(self, sample: int) -> Tensor:
        """Visual flags of one sample's real tokens, [n] bool."""
        return self.visual[sample, self.starts[sample] :]

    @classmethod
    def from_inputs(
        cls,
        config: Any,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        mm_token_type_ids: Tensor | None = None,
    ) -> Prompt:
        """Read the kinds off the inputs of ``generate``.

        Parameters
        ----------
        config : PreTrainedConfig
            The model's configuration; supplies the ids of the visual placeholder tokens.
        input_ids : Tensor [B, N]
            Expanded ids: one id per visual feature.
        attention_mask : Tensor [B, N], optional
            1 for real tokens; padding must be on the left.
        mm_token_type_ids : Tensor [B, N], optional
            0 text, 1 image, 2 video. The Qwen-VL families need it for their 3-D positions.

        Raises
        ------
        ValueError
            Right padding, an empty sample, or a Qwen-VL prompt with images but no ``mm_token_type_ids``.
        """
        placeholders = torch.tensor(visual_token_ids(config), device=input_ids.device, dtype=input_ids.dtype)
        visual = torch.isin(input_ids, placeholders)
        if mm_token_type_ids is None:
            _require_token_types(config, visual)
        else:
            visual = visual | (mm_token_type_ids != 0)
        return cls(visual=visual, starts=_left_padding(input_ids, attention_mask))


def _left_padding(input_ids: Tensor, attention_mask: Tensor | None) -> tuple[int, ...]:
    batch, length = input_ids.shape
    if attention_mask is None:
        return (0,) * batch
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}, but input_ids has {tuple(input_ids.shape)}; "
            "pass the 2-D mask that the processor returns."
        )
    valid = attention_mask.bool()
    starts = (length - valid.sum(dim=1)).tolist()
    for row, start in enumerate(starts):
        if start == length:
            raise ValueError(f"Row {row} of the batch holds no real token (its attention_mask is all 0).")
        if not bool(valid[row, start:].all()):
            raise ValueError(
                f"Row {row} of the batch is not left-padded; set processor.tokenizer.padding_side = 'left' "
                "(right or inner padding cannot be compressed)."
            )
    return tuple(starts)


def _require_token_types(config: Any, visual: Tensor) -> None:
    """Without ``mm_token_type_ids`` transformers silently gives Qwen-VL prompts 1-D positions: refuse."""
    if str(getattr(config, "model_type", "")).startswith("qwen") and bool(visual.any()):
        raise ValueError(
            "The prompt has visual tokens but no mm_token_type_ids, so the model would use wrong positions; "
            "pass everything the processor returns: model.generate(**processor(...))."
        )
