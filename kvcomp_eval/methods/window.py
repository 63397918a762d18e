"""What SnapKV and the methods built on it share: pooled attention of the observation window."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, WindowedMethod
from kvcomp_eval.scoring.pooling import check_pooling, pool_scores
from kvcomp_eval.scoring.window import window_scores
from kvcomp_eval.selection import window_positions
from kvcomp_eval.stores.heads import HeadPlan


@dataclass(frozen=True)
class WindowMethod(WindowedMethod):
    """A method that scores the prompt by the attention of its last tokens, and always keeps these.

    What differs between such methods is how many entries each head may keep.

    Parameters
    ----------
    kernel : int
        Pooling width along positions; 1 turns pooling off.
    pooling : str
        ``avg`` or ``max``. SnapKV's official LongBench runs use kernel 7 and max.
    """

    kernel: int = 5
    pooling: str = "avg"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pooling(self.kernel, self.pooling)

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
        return keep_best(scores, self.head_entries(prefill, scores, entries, window), window)

    def prefix_scores(self, prefill: LayerPrefill, window: int) -> Tensor:
        """Pooled scores of the tokens in front of the window, [Hkv, N - window]."""
        scores = window_scores(prefill.queries, prefill.keys, window, prefill.scaling)
        return pool_scores(scores[:, : prefill.length - window], self.kernel, self.pooling)


def keep_best(scores: Tensor, counts: Sequence[int], window: int) -> LayerPlan:
    """Each head's window and its best prefix tokens; ``counts`` entries per head, window included.

    Parameters
    ----------
    scores : Tensor [Hkv, N - window]
    """
    length = scores.shape[1] + window
    return tuple(
        HeadPlan(window_positions(head, count, length, window)) for head, count in zip(scores, counts, strict=True)
    )
