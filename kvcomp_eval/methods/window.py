"""What SnapKV and the methods built on it share: pooled attention of the observation window."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from kvcomp_eval.methods.base import LayerMethod, LayerPlan, LayerPrefill, check_at_least
from kvcomp_eval.scoring.pooling import check_pooling, pool_scores
from kvcomp_eval.scoring.window import window_scores
from kvcomp_eval.selection import window_positions
from kvcomp_eval.stores.heads import HeadPlan


@dataclass(frozen=True)
class WindowMethod(LayerMethod):
    """A method that scores the prompt by the attention of its last tokens, and always keeps these.

    What differs between such methods is how many entries each head may keep.

    Parameters
    ----------
    window : int
        Observation window, always kept. 32 is what the multimodal follow-ups (SparseMM, MixKV, BACON) use.
    kernel : int
        Pooling width along positions; 1 turns pooling off.
    pooling : str
        ``avg`` or ``max``. SnapKV's official LongBench runs use kernel 7 and max.
    """

    window: int = 32
    kernel: int = 5
    pooling: str = "avg"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("window", self.window, 1)
        check_pooling(self.kernel, self.pooling)

    @property
    def least_window(self) -> int:
        return self.window

    @abstractmethod
    def head_entries(self, prefill: LayerPrefill, scores: Tensor, entries: int, window: int) -> list[int]:
        """Entries that each KV head of this layer keeps, window included.

        Parameters
        ----------
        scores : Tensor [Hkv, N - window]
            Pooled prefix scores.
        entries : int
            Mean over the heads of the model.
        """

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        window = self.window_for(self.window, prefill.length)
        scores = self.prefix_scores(prefill, window)
        return keep_best(prefill, scores, self.head_entries(prefill, scores, entries, window), window)

    def prefix_scores(self, prefill: LayerPrefill, window: int) -> Tensor:
        """Pooled scores of the tokens in front of the window, [Hkv, N - window]."""
        scores = window_scores(prefill.queries, prefill.keys, window, prefill.scaling)
        return pool_scores(scores[:, : prefill.length - window], self.kernel, self.pooling)


def keep_best(prefill: LayerPrefill, scores: Tensor, counts: list[int], window: int) -> LayerPlan:
    """Each head's window and its best prefix tokens; ``counts`` entries per head, window included."""
    return tuple(
        HeadPlan(window_positions(head, count, prefill.length, window))
        for head, count in zip(scores, counts, strict=True)
    )
