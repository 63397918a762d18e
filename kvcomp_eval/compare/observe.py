"""Time, memory and positions of one ``generate`` call, seen from a hook on the text decoder."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvcomp_eval.compat import CACHE_KEYWORDS

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class CallObserver:
    """Records each forward pass of a model inside a ``with`` block; nothing is left on the model after it.

    Pass 0 is that of the prompt. On CUDA passes are stamped with events, so nothing waits for the device; on a CPU
    with the wall clock and this thread's CPU time.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._decoder = getattr(model.model, "language_model", model.model)
        self._device: torch.device = model.device
        self._handles: list[Any] = []

    def __enter__(self) -> CallObserver:
        self._handles = [
            self._decoder.register_forward_pre_hook(self._before, with_kwargs=True),
            self._model.register_forward_hook(self._after),
        ]
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def begin(self) -> None:
        """Start of the call: what came before is forgotten."""
        self._cache: Any = None
        self._positions: list[Tensor | None] = []
        self._peaks: list[int | None] = []
        reset_peak(self._device)
        self._stamps = [self._stamp()]

    def _before(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        cache = next((kwargs[name] for name in CACHE_KEYWORDS if kwargs.get(name) is not None), None)
        if self._positions and cache is not self._cache:
            # What came before was a rehearsal (`Method.prepared`): its time is the prompt's, its steps are no answer.
            self._positions.clear()
            self._peaks.clear()
            del self._stamps[1:]
        self._cache = cache
        self._positions.append(kwargs.get("position_ids"))

    def _after(self, module: Any, args: Any, output: Any) -> None:
        self._stamps.append(self._stamp())
        if not self._peaks:
            self._peaks.append(peak_bytes(self._device))
            reset_peak(self._device)

    def _stamp(self) -> tuple[Any, float]:
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event, time.thread_time()
        return time.perf_counter(), time.thread_time()

    def figures(self) -> dict[str, Any]:
        """What the call took.

        Returns
        -------
        dict
            ``prefill_seconds``: vision tower, prompt and compression, up to the first token's logits; ``step_us``:
            each later token in microseconds; both also as CPU time of this thread (``..._cpu``); ``prefill_peak``
            and ``decode_peak`` in bytes, None where the system does not tell.
        """
        pairs = list(zip(self._stamps, self._stamps[1:], strict=False))
        wall = [self._elapsed(start[0], end[0]) for start, end in pairs]
        cpu = [end[1] - start[1] for start, end in pairs]
        return {
            "prefill_seconds": round(wall[0], 6),
            "prefill_seconds_cpu": round(cpu[0], 6),
            "step_us": [round(1e6 * seconds) for seconds in wall[1:]],
            "step_us_cpu": [round(1e6 * seconds) for seconds in cpu[1:]],
            "prefill_peak": self._peaks[0],
            "decode_peak": peak_bytes(self._device),
        }

    def positions(self) -> dict[str, Any]:
        """Position ids that the decoder was given: the prompt's as a checksum, each later step's as numbers.

        Empty for decoders that are given none.
        """
        if not self._positions or self._positions[0] is None:
            return {}
        prompt, *steps = [ids.tolist() for ids in self._positions if ids is not None]
        return {"prompt": checksum(prompt), "steps": steps}

    def _elapsed(self, start: Any, end: Any) -> float:
        if self._device.type == "cuda":
            end.synchronize()
            return start.elapsed_time(end) / 1000
        return end - start


def checksum(value: Any) -> str:
    """Short hash of nested lists."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def reset_peak(device: torch.device) -> None:
    """Start a new phase of the memory peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif _CLEAR.exists():
        try:
            _CLEAR.write_text("5")  # proc(5): resets VmHWM
        except OSError:
            return


def peak_bytes(device: torch.device) -> int | None:
    """Highest memory of the phase: allocated on a GPU, resident set of the process on a CPU; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if not _STATUS.exists():
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
    return 1024 * int(found.group(1)) if found else None
