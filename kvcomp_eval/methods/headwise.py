"""Methods that keep some heads whole, and of the others sinks and recent tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvcomp_eval.budgets.full_heads import full_head_budgets
from kvcomp_eval.methods.base import LayerPlan, Method, check_at_least
from kvcomp_eval.stores.heads import HeadPlan


@dataclass(frozen=True)
class HeadObservation:
    """One layer's scores [n, Hkv] and its prompt's length."""

    scores: Tensor
    length: int


@dataclass(frozen=True)
class HeadwiseMethod(Method):
    """Whole heads get what the budget leaves when every other head holds ``sinks + recent`` entries.

    Parameters
    ----------
    sinks, recent : int
        First and last tokens of a head that is not whole. A few more recent ones use up the budget.
    """

    sinks: int = 4
    recent: int = 64

    scope = "global"
    varies = "layer, head"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("sinks", self.sinks, 0)
        check_at_least("recent", self.recent, 1)

    @abstractmethod
    def ranked(self, scores: Tensor) -> list[int]:
        """All heads of the model, those to keep whole first; scores [n, L * Hkv]."""

    @property
    def _compensates(self) -> bool:
        """Heads that are not whole get one entry for what they evict."""
        return False

    def plan(self, observations: Sequence[HeadObservation], details: dict[str, Any]) -> list[LayerPlan]:
        scores = torch.cat([layer.scores for layer in observations], dim=1)
        length, heads = observations[0].length, scores.shape[1]
        total = heads * self.entries(length, self.least_window)
        budgets = full_head_budgets(self.ranked(scores), length, total, self._short)
        details.setdefault("budgets", []).append(budgets)
        details.setdefault("head_scores", []).append(scores.tolist())
        plans = [self._head_plan(entries, length, scores.device) for entries in budgets]
        per_layer = heads // len(observations)
        return [tuple(plans[first : first + per_layer]) for first in range(0, heads, per_layer)]

    @property
    def _short(self) -> int:
        return self.sinks + self.recent + self._compensates

    def _head_plan(self, entries: int, length: int, device: torch.device) -> HeadPlan:
        compensated = self._compensates and 1 < entries < length
        entries -= compensated
        positions = torch.arange(entries, device=device)
        positions[min(self.sinks, entries - 1) :] += length - entries
        return HeadPlan(positions, compensated=compensated)
