"""StreamingLLM: the first tokens and the last ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, Method, check_at_least, keep_everything
from kvcomp_eval.stores.heads import HeadPlan

#: Tiny ratios are raised as for the window methods, so that both hold equally many bytes.
_COMPARED_WINDOW = 32


@dataclass(frozen=True)
class StreamingLLM(Method):
    """Attention sinks and recent tokens, the same for every head and whatever the content.

    Xiao et al., "Efficient Streaming Language Models with Attention Sinks", ICLR 2024, arXiv 2309.17453. The
    prompt form: keys keep their original rotary positions (re-numbering is not defined for M-RoPE) and generated
    tokens are never evicted.

    Parameters
    ----------
    sinks : int
        First tokens kept; 4 as in the paper, 0 is a plain recent window.
    """

    sinks: int = 4

    name = "streamingllm"
    paper = "arXiv 2309.17453"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("sinks", self.sinks, 0)

    def observe(self, prefill: LayerPrefill) -> LayerPlan:
        length = prefill.length
        entries = self.entries(length, _COMPARED_WINDOW)
        if entries >= length:
            return keep_everything(prefill)
        sinks = min(self.sinks, entries - 1)
        positions = torch.arange(entries, device=prefill.keys.device)
        positions[sinks:] += length - entries
        return (HeadPlan(positions),) * prefill.num_kv_heads

    def plan(self, observations: Sequence[LayerPlan], details: dict[str, Any]) -> list[LayerPlan]:
        return list(observations)
