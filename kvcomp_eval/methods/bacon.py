"""BACON: calibrated scores for a window method."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from kvcomp_eval.methods.adakv import AdaKV
from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, check_at_least, check_choice
from kvcomp_eval.methods.pyramidkv import PyramidKV
from kvcomp_eval.methods.snapkv import SnapKV
from kvcomp_eval.methods.sparsemm import SparseMM
from kvcomp_eval.methods.window import WindowMethod, keep_best
from kvcomp_eval.scoring.boundary import VARIANTS, BoundaryCalibration
from kvcomp_eval.scoring.pooling import check_pooling, pool_scores
from kvcomp_eval.scoring.window import window_attention

BACKBONES: dict[str, type[WindowMethod]] = {
    "snapkv": SnapKV,
    "pyramidkv": PyramidKV,
    "adakv": AdaKV,
    "sparsemm": SparseMM,
}
_TRACE = "bacon evidence"


@dataclass(frozen=True)
class Bacon(WindowMethod):
    """The backbone's budgets; within a head, tokens that the last prompt token singles out gain score.

    Chen et al., "Last But Not Least: Boundary Attention CalibratiON for Multimodal KV Cache Compression",
    arXiv 2606.14782.

    Parameters
    ----------
    backbone : str
        ``snapkv``, ``pyramidkv``, ``adakv`` or ``sparsemm``; its own parameters follow below.
    variant : str
        ``code`` (the released form, with a content gate) or ``paper``.
    gamma : float
        Strength of the calibration; 0 is the backbone.
    coherence : int
        Kernel of the mean over neighbouring positions; 0 leaves it out.
    persistence : int
        Previous layers that count; 0 leaves them out.
    region : float
        Entries whose deviations set the strength, as a multiple of those selected.
    gate : bool, optional
        Overrides the variant's content gate.
    beta : int
        Of ``pyramidkv``.
    floor : float
        Of ``adakv``.
    normalize : bool
        Of ``adakv``; on, as in the official port.
    head_scores : str, optional
        Of ``sparsemm``.
    ratio : float
        Of ``sparsemm``.
    """

    backbone: str = "snapkv"
    variant: str = "code"
    gamma: float = 0.5
    coherence: int = 5
    persistence: int = 4
    region: float = 2.0
    gate: bool | None = None
    beta: int = 20
    floor: float = 0.2
    normalize: bool = True
    head_scores: str | None = None
    ratio: float = 0.1

    name = "bacon"
    paper = "arXiv 2606.14782"
    varies = "as its backbone"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("backbone", self.backbone, tuple(BACKBONES))
        check_choice("variant", self.variant, VARIANTS)
        if self.coherence:
            check_pooling(self.coherence, "avg")
        for name in ("gamma", "persistence", "region", "coherence"):
            check_at_least(name, getattr(self, name), 0)
        _ = self._budgets  # bad parameters are refused here, not at the first prompt

    @cached_property
    def _budgets(self) -> WindowMethod:
        """The backbone with the parameters that it shares with this method."""
        cls = BACKBONES[self.backbone]
        return cls(**{item.name: getattr(self, item.name) for item in fields(cls) if hasattr(self, item.name)})

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        window = self.window_for(self.window, prefill.length)
        base, last = self._window_and_last(prefill, window)
        counts = self.head_entries(prefill, base, entries, window)
        trace: list[Tensor] = prefill.carried.setdefault(_TRACE, [])
        earlier = trace[-self.persistence :] if self.persistence else []
        calibration = BoundaryCalibration(self.variant, self.gamma, self.coherence, self.region, self.gate)
        scores, evidence = calibration(base, last, earlier, self._selected(counts, entries) - window)
        trace.append(evidence)
        return keep_best(scores, counts, window)

    def head_entries(self, prefill: LayerPrefill, scores: Tensor, entries: int, window: int) -> list[int]:
        return self._budgets.head_entries(prefill, scores, entries, window)

    def _selected(self, counts: list[int], entries: int) -> int:
        """Entries that set the region: a layer's own where the backbone varies layers, else the mean."""
        return counts[0] if self.backbone == "pyramidkv" else entries

    def _window_and_last(self, prefill: LayerPrefill, window: int) -> tuple[Tensor, Tensor]:
        """Pooled prefix scores of the window's mean and of the last prompt query, each [Hkv, N - window]."""
        grouped = prefill.queries[:, -window:].unflatten(0, (prefill.num_kv_heads, -1))
        base, last = [], []
        for head in range(prefill.num_kv_heads):
            weights = window_attention(grouped[head], prefill.keys[head], prefill.scaling)
            base.append(weights.mean(dim=(0, 1)))
            last.append(weights[:, -1].mean(0))
        prefix = prefill.length - window
        return (
            pool_scores(torch.stack(base)[:, :prefix], self.kernel, self.pooling),
            pool_scores(torch.stack(last)[:, :prefix], self.kernel, self.pooling),
        )
