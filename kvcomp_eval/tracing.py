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
        self._writer = _Writer(path)
        self._prompts = 0
        self.close = weakref.finalize(self, self._writer.close)

    def prompt(self, tokens: int) -> PromptTrace:
        """A trace for the next prompt."""
        self._writer.write_started()
        trace = PromptTrace(self._prompts, tokens)
        self._prompts += 1
        self._writer.waiting.append(trace)
        return trace


class _Writer:
    """The file itself, apart from its owner, so that it can be closed when the owner is gone."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: Any = None
        self.waiting: list[PromptTrace] = []

    def write_started(self) -> None:
        """Write the prompts that have steps; those of one batch wait for their first together."""
        import pyarrow
        import pyarrow.parquet

        started = [trace for trace in self.waiting if trace.has_steps]
        for trace in started:
            table = pyarrow.table(trace.rows())
            if self._file is None:
                Path(self._path).parent.mkdir(parents=True, exist_ok=True)
                self._file = pyarrow.parquet.ParquetWriter(self._path, table.schema, compression="zstd")
            self._file.write_table(table)
            self.waiting.remove(trace)

    def close(self) -> None:
        """Write what is left."""
        self.write_started()
        if self._file is not None:
            self._file.close()
