"""What methods share that fetch prompt entries anew at every step."""

from __future__ import annotations

from dataclasses import dataclass

from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, WindowedMethod, check_at_least, keep_everything


@dataclass(frozen=True)
class RetrievingMethod(WindowedMethod):
    """The window stays; of the prompt in front of it, entries are fetched at every step.

    Parameters
    ----------
    dense_layers : int
        First layers that keep the whole prompt, on top of the budget; 0 so that all methods hold the same.
    offload : bool
        What entries are fetched from is on the host.
    """

    dense_layers: int = 0
    offload: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("dense_layers", self.dense_layers, 0)

    def observe(self, prefill: LayerPrefill) -> LayerPlan:
        return keep_everything(prefill) if prefill.layer < self.dense_layers else super().observe(prefill)

    def held_entries(self, prompt_length: int, num_layers: int) -> float:
        entries = self.entries(prompt_length, self.least_window)
        sparse = prompt_length if entries >= prompt_length else self.resident_entries(prompt_length, entries)
        dense = min(self.dense_layers, num_layers)
        return (dense * prompt_length + (num_layers - dense) * sparse) / num_layers

    def resident_entries(self, length: int, entries: int) -> int:
        """Entries of a head in a layer that is not dense, where ``entries`` are planned."""
        return entries
