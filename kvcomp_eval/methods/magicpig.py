"""MagicPIG: attention over a sample instead of the top."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, check_at_least
from kvcomp_eval.methods.retrieving import RetrievingMethod
from kvcomp_eval.stores.heads import HeadPlan
from kvcomp_eval.stores.magicpig import SampledAttention

_PLANES = "magicpig planes"


@dataclass(frozen=True)
class MagicPIG(RetrievingMethod):
    """The window is resident; every query head samples the rest by locality-sensitive hashing.

    Chen et al., "MagicPIG: LSH Sampling for Efficient LLM Generation", ICLR 2025, arXiv 2410.16179. Nothing is
    fetched: the host attends to the sample. How large it is, is up to chance, ``bits`` and ``tables``, not to the
    budget (which decides only whether a prompt is short enough to be kept whole); ``reads_per_step`` counts it. The
    official code keeps 4 sinks, 64 local tokens, and every 16th layer dense. Average over seeds on short prompts.

    Parameters
    ----------
    bits, tables : int
        K and L; more bits sample less, more tables more.
    sinks : int
        First tokens that are resident, on top of the budget.
    seed : int
        Of the hyperplanes, which all heads and layers share.
    """

    bits: int = 10
    tables: int = 150
    sinks: int = 0
    seed: int = 0

    name = "magicpig"
    paper = "arXiv 2410.16179"
    decoding = "sample tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("bits", self.bits, 1)
        check_at_least("tables", self.tables, 2)
        check_at_least("sinks", self.sinks, 0)
        if self.bits > 30:
            raise ValueError(f"bits={self.bits} must be at most 30; codes are 32-bit numbers.")

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        length, device = prefill.length, prefill.keys.device
        sinks, window = self._resident(length)
        first = _PLANES not in prefill.carried
        if first:
            prefill.carried[_PLANES] = self._planes(prefill.keys)
        kept = torch.cat([torch.arange(sinks, device=device), torch.arange(length - window, length, device=device)])
        retrieval = SampledAttention(
            prefix=length - window - sinks,
            sinks=sinks,
            tables=self.tables,
            bits=self.bits,
            offload=self.offload,
            counts_planes=first,
            planes=prefill.carried[_PLANES],
        )
        return (HeadPlan(kept, retrieval),) * prefill.num_kv_heads

    def resident_entries(self, length: int, entries: int) -> int:
        return sum(self._resident(length))

    def _resident(self, length: int) -> tuple[int, int]:
        """Sinks and window of a prompt."""
        window = self.window_for(self.window, length)
        return min(self.sinks, length - window - 1), window

    def _planes(self, like: Tensor) -> Tensor:
        # Drawn on the CPU, so that every device hashes alike.
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(like.shape[-1], self.bits * self.tables, generator=generator).to(like.device)
