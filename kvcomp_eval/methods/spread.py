"""What MEDA and VL-Cache share: layers get their budget by how widely they attend."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from kvcomp_eval.budgets.layers import layer_budgets
from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, Method


@dataclass(frozen=True)
class LayerScores:
    """What is learned of a layer.

    Parameters
    ----------
    spread : Tensor, scalar
        How widely it attends.
    received : Tensor [Hkv, N]
        Attention that each token receives.
    visual : Tensor [N], bool
    """

    spread: Tensor
    received: Tensor
    visual: Tensor


@dataclass(frozen=True)
class SpreadMethod(Method):
    """Budgets need every layer, so the cache is packed after the last one.

    Parameters
    ----------
    official : bool
        The published clip of the layers' ratios to [0.01, 1], which loses part of the total.
    """

    official: bool = False

    scope: ClassVar[Literal["layer", "global"]] = "global"

    @abstractmethod
    def observe(self, prefill: LayerPrefill) -> LayerScores: ...

    @abstractmethod
    def weights(self, spreads: list[float]) -> Sequence[float]:
        """Weights of the layers' budgets from their spreads."""

    @abstractmethod
    def keep(self, layer: LayerScores, entries: int) -> LayerPlan:
        """What each KV head of a layer keeps."""

    def plan(self, observations: Sequence[LayerScores], details: dict[str, Any]) -> list[LayerPlan]:
        length = len(observations[0].visual)
        spreads = torch.stack([layer.spread for layer in observations]).tolist()
        mean = self.entries(length, self.least_window)
        budgets = layer_budgets(self.weights(spreads), mean, length, self.official)
        details.setdefault("layer_spread", []).append(spreads)
        details.setdefault("layer_entries", []).append(budgets)
        return [self.keep(layer, entries) for layer, entries in zip(observations, budgets, strict=True)]
