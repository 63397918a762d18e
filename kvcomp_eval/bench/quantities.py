"""What the benchmarks measure: raw values first, summaries derived from them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Latency:
    """CPU time of one operation, repeated.

    Parameters
    ----------
    seconds : tuple of float
        Raw values in the order measured.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Distance between the quartiles; 0 for a single value."""
        if len(self.seconds) < 2:
            return 0.0
        lower, _, upper = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return upper - lower


@dataclass(frozen=True)
class CacheBytes:
    """Realised bytes of a cache, measured on its tensors.

    Parameters
    ----------
    device : int
        Prompt entries, index and overhead.
    host : int
        Retrieval pools (on a CPU run: what a GPU run would keep on the host).
    index : int
        Part of ``device`` that is the retrieval index.
    read_per_step : int
        What one decode step cannot avoid reading: resident prompt entries, index, retrieved chunks.
    """

    device: int
    host: int
    index: int
    read_per_step: int


@dataclass(frozen=True)
class Measurement:
    """One contender at one length and dtype.

    Parameters
    ----------
    phase : str
        ``decode`` (one token) or ``prefill`` (one prompt).
    floor_seconds : float, optional
        Weights and attended cache over the measured read bandwidth; decode only.
    details : dict
        Further facts, such as the number of dynamic heads.
    attention : Latency, optional
        Inside the attention modules; decode only.
    """

    phase: str
    contender: str
    dtype: str
    length: int
    latency: Latency
    cache: CacheBytes
    floor_seconds: float | None
    details: dict[str, Any]
    attention: Latency | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able dictionary with raw values and summaries."""
        summary = {"median_seconds": self.latency.median, "spread_seconds": self.latency.spread}
        return asdict(self) | summary


def cpu_seconds(operation: Callable[[], Any]) -> tuple[float, Any]:
    """CPU time of the calling thread, and the result; right only with ``torch.set_num_threads(1)``."""
    started = time.thread_time()
    result = operation()
    return time.thread_time() - started, result


def read_bandwidth(megabytes: int = 512, repeats: int = 5) -> float:
    """Bytes per second at which one thread reads memory: the best of several sums over a large tensor."""
    data = torch.ones(megabytes * 2**20 // 4)
    data.sum()
    best = min(cpu_seconds(data.sum)[0] for _ in range(repeats))
    return data.untyped_storage().nbytes() / best
