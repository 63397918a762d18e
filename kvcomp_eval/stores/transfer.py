"""Where retrievable keys and values wait, and how chosen rows come back to the device."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class RowPool(Protocol):
    """Rows of S heads, R rows each, that can be fetched by number."""

    def fetch(self, rows: Tensor, out: Tensor) -> None:
        """Copy rows ``rows`` [S, m] into ``out`` [S, m, width]; out may be a slice of a bigger buffer."""
        ...

    @property
    def device_bytes(self) -> int: ...

    @property
    def host_bytes(self) -> int: ...


class SharedMemoryPool:
    """Rows in memory that the device addresses itself: its own, or the host's when the device is the CPU.

    Parameters
    ----------
    rows : Tensor [S, R, width]
    on_host : bool
        Count the bytes as host memory (a CPU run, where both are the same).
    """

    def __init__(self, rows: Tensor, on_host: bool) -> None:
        self._rows = rows
        self._on_host = on_host

    def fetch(self, rows: Tensor, out: Tensor) -> None:
        # One call a head, straight into the slots; a gather of all heads would need a copy more.
        for head_rows, chosen, target in zip(self._rows, rows, out, strict=True):
            torch.index_select(head_rows, 0, chosen, out=target)

    @property
    def device_bytes(self) -> int:
        return 0 if self._on_host else self._rows.untyped_storage().nbytes()

    @property
    def host_bytes(self) -> int:
        return self._rows.untyped_storage().nbytes() if self._on_host else 0


class PinnedHostPool:
    """Rows in pinned host memory, for a device of its own memory (CUDA).

    The chosen rows are gathered on the host into a pinned staging buffer and sent in one asynchronous
    copy per call. The row numbers have to be known on the host, which costs one synchronisation.
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        self._rows.copy_(rows)
        self._first = torch.arange(rows.shape[0])[:, None] * rows.shape[1]
        self._staging: Tensor | None = None

    def fetch(self, rows: Tensor, out: Tensor) -> None:
        flat = (rows.cpu() + self._first).flatten()
        if self._staging is None or self._staging.shape[0] != len(flat):
            shape = (len(flat), self._rows.shape[-1])
            self._staging = torch.empty(shape, dtype=self._rows.dtype, pin_memory=True)
        torch.index_select(self._rows.flatten(0, 1), 0, flat, out=self._staging)
        out.copy_(self._staging.view(out.shape), non_blocking=True)

    @property
    def device_bytes(self) -> int:
        return 0

    @property
    def host_bytes(self) -> int:
        return self._rows.untyped_storage().nbytes()


def make_pool(rows: Tensor, offload: bool) -> RowPool:
    """Pool for rows [S, R, width]; with ``offload`` on the host, else on the rows' own device."""
    if offload and rows.device.type == "cuda":
        return PinnedHostPool(rows)
    return SharedMemoryPool(rows, on_host=offload)
