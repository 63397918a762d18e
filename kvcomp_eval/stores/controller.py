"""When to choose anew: a threshold on drift that is steered towards a refresh rate (RCR)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

UPDATES = ("layer", "step")


@dataclass(eq=False)
class RateController:
    """Threshold tau of one sample, shared by its layers: ``tau <- tau * exp(gain * (f - rho))``.

    So the realised rate over N updates is ``rho + ln(tau_N / tau_0) / (gain * N)``. Everything stays on the device.

    Parameters
    ----------
    tau : float
        Start value; -1 refreshes always, inf never.
    rho : float
        Target rate.
    gain : float
        0 keeps the threshold fixed.
    num_layers : int
    update : str
        ``layer``: after every layer, f in {0, 1}; ``step``: after the last one, f the share of layers refreshed.
    device : torch.device
    """

    tau: float
    rho: float
    gain: float
    num_layers: int
    update: str
    device: torch.device
    updates: int = 0
    _log_tau: Tensor = field(init=False)
    _refreshed: Tensor = field(init=False)
    _pending: Tensor = field(init=False)

    def __post_init__(self) -> None:
        start = math.log(self.tau) if self.tau > 0 else -math.inf
        self._log_tau = torch.tensor(start, device=self.device)
        self._refreshed = torch.zeros((), device=self.device)
        self._pending = torch.zeros((), device=self.device)

    @property
    def threshold(self) -> Tensor:
        """Tau, a scalar; below any drift when it started so."""
        return self._log_tau.exp() if self.tau > 0 else torch.full_like(self._log_tau, -1.0)

    def observe(self, refreshed: Tensor) -> None:
        """Take the share of this layer's heads that refreshed (a scalar), layer by layer."""
        self.updates += 1
        self._refreshed = self._refreshed + refreshed
        if self.update == "layer":
            self._steer(refreshed)
            return
        self._pending = self._pending + refreshed
        if self.updates % self.num_layers == 0:
            self._steer(self._pending / self.num_layers)
            self._pending = torch.zeros_like(self._pending)

    def _steer(self, share: Tensor) -> None:
        self._log_tau = self._log_tau + self.gain * (share - self.rho)

    @property
    def rate(self) -> float:
        """Realised share of layer-steps refreshed; reads the device."""
        return float(self._refreshed) / max(1, self.updates)
