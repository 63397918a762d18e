"""ShadowKV: low-rank keys on the device, values on the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcomp_eval.inputs import Rotation
from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, check_at_least
from kvcomp_eval.methods.retrieving import RetrievingMethod
from kvcomp_eval.selection import other_positions
from kvcomp_eval.stores.heads import HeadPlan
from kvcomp_eval.stores.retrieval import chunk_positions
from kvcomp_eval.stores.shadowkv import LowRankRetrieval, outlier_chunks

#: The paper's rank for eight KV heads of dimension 128.
_PAPER_RANK = 160 / 1024
_ROTATION = "shadowkv rotation"


@dataclass(frozen=True)
class ShadowKV(RetrievingMethod):
    """Chunks by their mean key; their values are fetched, their keys rebuilt from pre-RoPE factors.

    Sun et al., "ShadowKV: KV Cache in Shadows for High-Throughput Long-Context LLM Inference", ICML 2025,
    arXiv 2410.21465. One factorisation for all KV heads of a layer. Tokens that do not fill the last chunk stay with
    the window, and count on top of the budget; the window takes the place of the paper's local chunks.

    Parameters
    ----------
    chunk_size : int
    rank : int, optional
        Of the keys of all KV heads side by side; by default the paper's share of their width, 160 of 1024.
    outliers : int
        Chunks per head that their mean key stands for worst, kept whole on top of the budget; the official code
        keeps 48.
    """

    chunk_size: int = 8
    rank: int | None = None
    outliers: int = 0

    name = "shadowkv"
    paper = "arXiv 2410.21465"
    decoding = "retrieve chunks"
    needs_inputs = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("chunk_size", self.chunk_size, 1)
        check_at_least("outliers", self.outliers, 0)
        if self.rank is not None:
            check_at_least("rank", self.rank, 1)

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        length, size, device = prefill.length, self.chunk_size, prefill.keys.device
        chunks, outliers, retrieved = self._chunks(length, entries)
        tail = torch.arange(chunks * size, length, device=device)
        if retrieved < 1:
            return (HeadPlan(tail),) * prefill.num_kv_heads
        first = _ROTATION not in prefill.carried
        if first:
            prefill.carried[_ROTATION] = self._rotation(prefill, chunks * size)
        resident = outlier_chunks(prefill.keys[:, : chunks * size], size, outliers)
        plans = []
        for head in resident:
            retrieval = LowRankRetrieval(
                num_chunks=chunks,
                retrieved=retrieved,
                chunk_size=size,
                rank=self._rank(prefill, chunks * size),
                num_kv_heads=prefill.num_kv_heads,
                offload=self.offload,
                counts_rotation=first,
                rotation=prefill.carried[_ROTATION],
                candidates=other_positions(head, chunks),
            )
            plans.append(HeadPlan(torch.cat([chunk_positions(head, size), tail]), retrieval))
        return tuple(plans)

    def resident_entries(self, length: int, entries: int) -> int:
        chunks, outliers, retrieved = self._chunks(length, entries)
        return length - (chunks - outliers - retrieved) * self.chunk_size

    def _chunks(self, length: int, entries: int) -> tuple[int, int, int]:
        """Chunks of a prompt, how many of them are resident, and how many are fetched at a step."""
        window = self.window_for(self.window, length)
        chunks = (length - window) // self.chunk_size
        outliers = min(self.outliers, max(0, chunks - 1))
        return chunks, outliers, min(chunks - outliers, max(1, (entries - window) // self.chunk_size))

    def _rank(self, prefill: LayerPrefill, covered: int) -> int:
        width = prefill.num_kv_heads * prefill.keys.shape[-1]
        return min(self.rank or max(1, round(_PAPER_RANK * width)), width, covered)

    def _rotation(self, prefill: LayerPrefill, covered: int) -> Rotation:
        """Rotation of the chunked tokens, in memory of its own."""
        assert prefill.inputs is not None
        whole = prefill.inputs.rotation
        return Rotation(whole.apply, whole.cos[:, :covered].clone(), whole.sin[:, :covered].clone())
