"""Methods with faults, for tests of the gate and of failing cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from kvcomp_eval.methods.base import LayerPrefill
from kvcomp_eval.methods.snapkv import SnapKV
from kvcomp_eval.stores.heads import HeadPlan


@dataclass(frozen=True)
class WindowDropped(SnapKV):
    """SnapKV that forgets its window: as many entries, all from the start of the prompt."""

    def select(self, prefill: LayerPrefill, entries: int) -> Any:
        first = torch.arange(min(entries, prefill.length - self.window), device=prefill.keys.device)
        return (HeadPlan(first),) * prefill.num_kv_heads


@dataclass(frozen=True)
class Crashing(SnapKV):
    """SnapKV that fails on every prompt that it should compress."""

    def select(self, prefill: LayerPrefill, entries: int) -> Any:
        raise ArithmeticError("no entries today")


@dataclass(frozen=True)
class NothingDropped(SnapKV):
    """SnapKV that keeps everything, whatever its budget."""

    def select(self, prefill: LayerPrefill, entries: int) -> Any:
        every = torch.arange(prefill.length, device=prefill.keys.device)
        return (HeadPlan(every),) * prefill.num_kv_heads


@dataclass(frozen=True)
class LossyWhole(SnapKV):
    """SnapKV that loses the end of the prompt at 100 %."""

    def observe(self, prefill: LayerPrefill) -> Any:
        if self.budget_ratio != 1.0:
            return super().observe(prefill)
        return (HeadPlan(torch.arange(prefill.length - 64, device=prefill.keys.device)),) * prefill.num_kv_heads


@dataclass(frozen=True)
class Leaking(WindowDropped):
    """Forgets its window on every prompt but the first, since it remembers that it has seen one."""

    prompts: ClassVar[list[int]] = []

    def select(self, prefill: LayerPrefill, entries: int) -> Any:
        if prefill.layer == 0:
            self.prompts.append(prefill.length)
        return super().select(prefill, entries) if len(self.prompts) > 1 else SnapKV.select(self, prefill, entries)
