"""Random re-selection: the floor for methods that re-select while decoding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, WindowedMethod, check_share
from kvcomp_eval.methods.random import seed_of
from kvcomp_eval.stores.heads import HeadPlan
from kvcomp_eval.stores.random_refresh import RandomRetrieval


@dataclass(frozen=True)
class RandomRefresh(WindowedMethod):
    """RCR's layout and rate, with random entries at random steps.

    Parameters
    ----------
    rate : float
        Share of layer-steps that draw anew.
    seed : int
        The draws depend on seed, layer and prompt length only.
    offload : bool
        Prefix keys and values on the host.
    """

    rate: float = 0.4
    seed: int = 0
    offload: bool = True

    name = "random_refresh"
    paper = "-"
    kind = "reference"
    decoding = "re-select at random"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("rate", self.rate)

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        length = prefill.length
        window = self.window_for(self.window, length)
        retrieval = RandomRetrieval(
            selected=entries - window,
            prefix=length - window,
            rate=self.rate,
            seed=seed_of(self.seed, prefill),
            offload=self.offload,
        )
        kept = torch.arange(length - window, length, device=prefill.keys.device)
        return (HeadPlan(kept, retrieval),) * prefill.num_kv_heads
