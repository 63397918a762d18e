"""No compression: the honest control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, Method, keep_everything


@dataclass(frozen=True)
class Full(Method):
    """Keep the whole prompt, preallocated and with packed GQA attention.

    Stock transformers copies its cache at every step; beating that is not compression. Speed is to be
    compared with this.
    """

    name = "full"
    paper = "-"
    kind = "reference"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget_ratio not in (None, 1) or self.budget_entries is not None:
            raise ValueError(
                "Method full keeps everything and takes no budget; drop budget_ratio/budget_entries "
                "or choose a compressing method."
            )

    def observe(self, prefill: LayerPrefill) -> LayerPlan:
        return keep_everything(prefill)

    def plan(self, observations: Sequence[LayerPlan], details: dict[str, Any]) -> list[LayerPlan]:
        return list(observations)
