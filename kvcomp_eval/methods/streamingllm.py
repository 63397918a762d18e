"""StreamingLLM: the first tokens and the last ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcomp_eval.methods.base import LayerMethod, LayerPlan, LayerPrefill, check_at_least
from kvcomp_eval.stores.heads import HeadPlan


@dataclass(frozen=True)
class StreamingLLM(LayerMethod):
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

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        length = prefill.length
        sinks = min(self.sinks, entries - 1)
        positions = torch.arange(entries, device=prefill.keys.device)
        positions[sinks:] += length - entries
        return (HeadPlan(positions),) * prefill.num_kv_heads
