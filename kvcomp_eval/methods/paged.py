"""Methods that retrieve pages of the prompt at every step: Quest, ArkVale, FreeKV."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, check_at_least, check_choice
from kvcomp_eval.methods.retrieving import RetrievingMethod
from kvcomp_eval.stores.chunks import GROUP_RULES, INDEXES, ChunkSpec
from kvcomp_eval.stores.heads import HeadPlan


@dataclass(frozen=True)
class PagedMethod(RetrievingMethod):
    """The window stays; of the prompt in front of it, every KV head fetches its best pages at every step.

    Tokens that do not fill the last page stay with the window, and count on top of the budget.

    Parameters
    ----------
    page : int
        Tokens of a page.
    group_rule : str
        One score per KV head from its query heads: ``mean_softmax``, ``max_softmax`` or ``mean_logit``.
    """

    page: int = 16
    group_rule: str = "mean_softmax"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("page", self.page, 1)
        check_choice("group_rule", self.group_rule, GROUP_RULES)
        check_choice("index", self._index, INDEXES)

    @property
    def _index(self) -> str:
        """Digest of a page."""
        raise NotImplementedError

    @property
    def _correct_below(self) -> float | None:
        return None

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        length = prefill.length
        pages, retrieved = self._pages(length, entries)
        tail = torch.arange(pages * self.page, length, device=prefill.keys.device)
        spec = ChunkSpec(
            num_chunks=pages,
            retrieved=retrieved,
            chunk_size=self.page,
            index=self._index,
            group_rule=self.group_rule,
            offload=self.offload,
            correct_below=self._correct_below,
        )
        return (HeadPlan(tail, spec if pages else None),) * prefill.num_kv_heads

    def resident_entries(self, length: int, entries: int) -> int:
        pages, retrieved = self._pages(length, entries)
        return length - (pages - retrieved) * self.page

    def _pages(self, length: int, entries: int) -> tuple[int, int]:
        """Pages of a prompt, and how many are fetched at a step."""
        window = self.window_for(self.window, length)
        pages = (length - window) // self.page
        return pages, min(pages, max(1, (entries - window) // self.page))


@dataclass(frozen=True)
class Quest(PagedMethod):
    """Pages by the largest inner product that their bounding box allows.

    Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", ICML 2024, arXiv 2406.10774.
    One set of pages per KV head (the official code selects per query head); no dense first layers.
    """

    name = "quest"
    paper = "arXiv 2406.10774"
    decoding = "retrieve pages"

    @property
    def _index(self) -> str:
        return "minmax"


@dataclass(frozen=True)
class ArkVale(PagedMethod):
    """Pages by a box of centre plus and minus the mean distance from it.

    Chen et al., "ArkVale: Efficient Generative LLM Inference with Recallable Key-Value Eviction", NeurIPS 2024.
    At this budget every cached page is chosen anew at each step, so its eviction rule has nothing to decide.
    """

    name = "arkvale"
    paper = "NeurIPS 2024"
    decoding = "retrieve pages"

    @property
    def _index(self) -> str:
        return "cuboid"


@dataclass(frozen=True)
class FreeKV(PagedMethod):
    """Pages chosen with the previous token's queries, corrected for heads whose queries turned.

    Liu et al., "FreeKV", ICLR 2026, arXiv 2505.13109. The first step is always corrected.

    Parameters
    ----------
    tau : float
        Cosine of successive queries below which a KV head chooses with the current ones; above 1 always, below
        -1 never.
    """

    tau: float = 0.8

    name = "freekv"
    paper = "arXiv 2505.13109"
    decoding = "retrieve pages"

    @property
    def _index(self) -> str:
        return "minmax"

    @property
    def _correct_below(self) -> float | None:
        return self.tau
