"""What a row costs: bytes, times and memory, from the answers of its cells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kvcomp_eval.compare.results import RowTask


def costs(cells: Iterable[RowTask], on_gpu: bool) -> dict[str, Any]:
    """Figures over all answers of a row.

    Returns
    -------
    dict
        Bytes are means per answer; ``ratio`` is device bytes over those of an uncompressed cache. ``prefill`` is the
        median of seconds per answer, ``decode_p50`` and ``decode_p90`` are percentiles of milliseconds per token over
        all decode steps, each as wall and as CPU time of the thread. ``decode`` is the median that rows are compared
        by: on a GPU the wall time, on a CPU the thread's, which other programs disturb less. Peaks are the highest of
        any answer, None where the system does not tell.
    """
    answers = [answer for cell in cells for record in cell.records for answer in record.answers.values()]
    report = {name: _mean(answers, name) for name in ("device_bytes", "host_bytes", "index_bytes", "full_bytes")}
    steps = np.concatenate([answer["timing"]["step_us"] for answer in answers]) / 1e3
    cpu_steps = np.concatenate([answer["timing"]["step_us_cpu"] for answer in answers]) / 1e3
    wall, cpu = _percentile(steps, 50), _percentile(cpu_steps, 50)
    return {
        **report,
        "decode": wall if on_gpu else cpu,
        "ratio": report["device_bytes"] / report["full_bytes"],
        "kept_ratio": _mean(answers, "kept_entries") / _mean(answers, "full_entries"),
        "reads_per_step": _mean(answers, "reads_per_step"),
        "prompt_tokens": float(np.mean([answer["input_tokens"] for answer in answers])),
        "answer_tokens": float(np.mean([len(answer["tokens"]) for answer in answers])),
        "prefill": _median(answers, "prefill_seconds"),
        "prefill_cpu": _median(answers, "prefill_seconds_cpu"),
        "decode_p50": wall,
        "decode_p90": _percentile(steps, 90),
        "decode_cpu_p50": cpu,
        "decode_cpu_p90": _percentile(cpu_steps, 90),
        "prefill_peak": _peak(answers, "prefill_peak"),
        "decode_peak": _peak(answers, "decode_peak"),
    }


def _mean(answers: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([answer["report"][name] for answer in answers]))


def _median(answers: list[dict[str, Any]], name: str) -> float:
    return float(np.median([answer["timing"][name] for answer in answers]))


def _percentile(values: np.ndarray, percent: int) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


def _peak(answers: list[dict[str, Any]], name: str) -> int | None:
    known = [answer["timing"][name] for answer in answers if answer["timing"][name] is not None]
    return max(known, default=None)
