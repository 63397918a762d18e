"""What rate-controlled refresh did at every step and layer, in one Parquet file a run."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: Columns of the file, one row per step and layer. ``refreshed`` is the share of KV heads, ``overlap`` the share of
#: the selection that the step kept.
COLUMNS = ("prompt", "tokens", "step", "layer", "drift", "tau", "refreshed", "overlap")


class PromptTrace:
    """Collects one prompt's steps as device tensors; nothing is read before :meth:`rows`.

    Parameters
    ----------
    prompt : int
        Running number.
    tokens : int
        Prompt length.
    """

    def __init__(self, prompt: int, tokens: int) -> None:
        self.prompt, self.tokens = prompt, tokens
        self._layers: list[int] = []
        self._figures: list[Tensor] = []
        self._before: dict[int, Tensor] = {}
        self._steps: list[int] = []

    def start(self, layer: int, chosen: Tensor) -> None:
        """The first selection of a layer, [Hkv, c]."""
        self._before[layer] = chosen

    def __call__(self, layer: int, drift: Tensor, tau: Tensor, refreshed: Tensor, chosen: Tensor) -> None:
        """One step of one layer; scalars, and the selection [Hkv, c] after it."""
        starts_step = bool(self._layers) and layer <= self._layers[-1]
        self._steps.append(self._steps[-1] + starts_step if self._steps else 0)
        self._layers.append(layer)
        overlap = (chosen.unsqueeze(2) == self._before[layer].unsqueeze(1)).any(2).float().mean()
        self._before[layer] = chosen
        self._figures.append(torch.stack([drift, tau, refreshed, overlap]))

    def rows(self) -> dict[str, Any]:
        """Columns of the file."""
        figures = torch.stack(self._figures).cpu()
        constant = {"prompt": [self.prompt] * len(figures), "tokens": [self.tokens] * len(figures)}
        own = {"step": self._steps, "layer": self._layers}
        return constant | own | {name: figures[:, i].numpy() for i, name in enumerate(COLUMNS[4:])}

    @property
    def has_steps(self) -> bool:
        return bool(self._figures)


class TraceFile:
    """Writes finished prompts when the next one starts, and the rest when it is closed or collected.

    Parameters
    ----------
    path : str
        A ``.parquet`` file; an existing one is refused, since a trace is of one run.
    """

    def __init__(self, path: str) -> None:
        if Path(path).exists():
            raise FileExistsError(f"trace={path!r} exists already; give another file name, or remove it.")
        self._path = path
        self._state: dict[str, Any] = {"open": [], "writer": None, "prompts": 0}
        self.close = weakref.finalize(self, _close, path, self._state)

    def prompt(self, tokens: int) -> PromptTrace:
        """A trace for the next prompt."""
        state = self._state
        for trace in [trace for trace in state["open"] if trace.has_steps]:
            _write(self._path, state, trace)
            state["open"].remove(trace)
        trace = PromptTrace(state["prompts"], tokens)
        state["prompts"] += 1
        state["open"].append(trace)
        return trace


def _write(path: str, state: dict[str, Any], trace: PromptTrace) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table(trace.rows())
    if state["writer"] is None:
        state["writer"] = pyarrow.parquet.ParquetWriter(path, table.schema, compression="zstd")
    state["writer"].write_table(table)


def _close(path: str, state: dict[str, Any]) -> None:
    for trace in state["open"]:
        if trace.has_steps:
            _write(path, state, trace)
    state["open"].clear()
    if state["writer"] is not None:
        state["writer"].close()
