"""Boundary attention calibration (BACON): where the last prompt token looks beyond the window's mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

VARIANTS = ("code", "paper")


@dataclass(frozen=True)
class BoundaryCalibration:
    """From base scores and the last query's row to calibrated scores (arXiv 2606.14782).

    ``E = relu(Q - B)``, ``V = E + L + T`` with L the mean of E over neighbouring positions and T its mean over
    the previous layers, ``S = B + lambda V`` (eqs. 4-16).

    Parameters
    ----------
    variant : str
        ``code``: L divides by the kernel at the edges too, the deviations of B and V are taken over each one's own
        best entries, and lambda is gated by ``mean(V) / mean(B)``. ``paper``: truncated mean, deviations of both
        over the best entries of B, no gate.
    gamma : float
        Strength; 0 leaves B as it is.
    kernel : int
        Width of L; 0 leaves L out.
    region : float
        Entries of the deviations, as a multiple of the entries selected (rho).
    gate : bool, optional
        Overrides the variant's gate.
    """

    variant: str = "code"
    gamma: float = 0.5
    kernel: int = 5
    region: float = 2.0
    gate: bool | None = None

    def __call__(self, base: Tensor, last: Tensor, earlier: Sequence[Tensor], selected: int) -> tuple[Tensor, Tensor]:
        """Calibrated scores S and emergent evidence E, both [Hkv, P].

        Parameters
        ----------
        base, last : Tensor [Hkv, P]
            Scores of the window's mean and of the last query, reduced and pooled alike.
        earlier : sequence of Tensor [Hkv, P]
            E of the previous layers that persistence looks back on.
        selected : int
            Prefix entries per head that the scores will choose (K).
        """
        evidence = (last - base).clamp(min=0)
        calibrated = evidence + self._coherence(evidence)
        if earlier:
            calibrated = calibrated + torch.stack(list(earlier)).mean(0)
        count = max(1, min(int(self.region * selected), base.shape[1]))
        return base + self._strength(base, calibrated, count) * calibrated, evidence

    def _coherence(self, evidence: Tensor) -> Tensor:
        if self.kernel == 0:
            return torch.zeros_like(evidence)
        pooled: Tensor = F.avg_pool1d(
            evidence.unsqueeze(1),
            self.kernel,
            stride=1,
            padding=self.kernel // 2,
            count_include_pad=self.variant == "code",
        ).squeeze(1)
        return pooled

    def _strength(self, base: Tensor, calibrated: Tensor, count: int) -> Tensor:
        """Lambda of each head, [Hkv, 1]."""
        best = base.topk(count, dim=1)
        values = calibrated.topk(count, dim=1).values if self.variant == "code" else calibrated.gather(1, best.indices)
        deviation = values.std(1, correction=0, keepdim=True) + 1e-8
        strength = self.gamma * best.values.std(1, correction=0, keepdim=True) / deviation
        if self.variant == "code" if self.gate is None else self.gate:
            ratio = values.mean(1, keepdim=True) / (best.values.mean(1, keepdim=True) + 1e-8)
            strength = strength * ratio.clamp(0, 1)
        return strength
