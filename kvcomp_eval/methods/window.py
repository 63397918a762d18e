"""What SnapKV and the methods built on it share: pooled attention of the observation window."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvcomp_eval.methods.base import LayerMethod, LayerPrefill, check_at_least
from kvcomp_eval.scoring.pooling import check_pooling, pool_scores
from kvcomp_eval.scoring.window import window_scores


@dataclass(frozen=True)
class WindowMethod(LayerMethod):
    """A method that scores the prompt by the attention of its last tokens.

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

    def prefix_scores(self, prefill: LayerPrefill, window: int) -> Tensor:
        """Pooled scores of the tokens in front of the window, [Hkv, N - window]."""
        scores = window_scores(prefill.queries, prefill.keys, window, prefill.scaling)
        return pool_scores(scores[:, : prefill.length - window], self.kernel, self.pooling)
