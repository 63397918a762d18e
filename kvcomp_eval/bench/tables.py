"""Measurements as a plain table: one row per dtype, length and contender."""

from __future__ import annotations

from collections.abc import Sequence

from kvcomp_eval.bench.contenders import FULL, STOCK
from kvcomp_eval.bench.quantities import Measurement

_HEADER = ("dtype", "length", "contender", "median ms", "spread", "floor ms", "over stock", "over full")
_ATTENTION_HEADER = ("attention ms", "/ snapkv")
_BYTES_HEADER = ("device MB", "index MB", "host MB")


def speed_up(measurement: Measurement, base: str, among: Sequence[Measurement]) -> float | None:
    """How many times faster than contender ``base`` of the same run; None where that did not run."""
    for other in among:
        if (other.contender, other.dtype, other.length) == (base, measurement.dtype, measurement.length):
            return other.latency.median / measurement.latency.median
    return None


def to_table(measurements: Sequence[Measurement]) -> str:
    """Aligned text. Decode compares as speed-up (higher is better), prefill as relative cost (lower is better)."""
    prefill = bool(measurements) and measurements[0].phase == "prefill"
    header = tuple("cost / " + name.split()[1] if prefill and name.startswith("over") else name for name in _HEADER)
    rows: list[tuple[str, ...]] = [(*header, *(() if prefill else _ATTENTION_HEADER), *_BYTES_HEADER)]
    rows += [_row(item, measurements, prefill) for item in measurements]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _row(item: Measurement, among: Sequence[Measurement], prefill: bool) -> tuple[str, ...]:
    ratios = []
    for base in (STOCK, FULL):
        ratio = speed_up(item, base, among)
        ratios.append("-" if ratio is None else f"{1 / ratio:.3f}" if prefill else f"{ratio:.2f}x")
    return (
        item.dtype,
        str(item.length),
        item.contender,
        f"{item.latency.median * 1e3:.1f}",
        f"{item.latency.spread * 1e3:.1f}",
        "-" if item.floor_seconds is None else f"{item.floor_seconds * 1e3:.1f}",
        *ratios,
        *(() if prefill else _attention(item, among)),
        *(f"{count / 1e6:.2f}" for count in (item.cache.device, item.cache.index, item.cache.host)),
    )


def _attention(item: Measurement, among: Sequence[Measurement]) -> tuple[str, str]:
    """Time inside the attention modules, and over that of one selection at prefill."""
    assert item.attention is not None
    own = item.attention.median
    for other in among:
        if (other.contender, other.dtype, other.length) == ("snapkv", item.dtype, item.length) and other.attention:
            return f"{own * 1e3:.1f}", f"{own / other.attention.median:.2f}x"
    return f"{own * 1e3:.1f}", "-"
