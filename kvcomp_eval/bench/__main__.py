"""Command line of the benchmarks; see ``docs/benchmark-decode.md`` for results."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from kvcomp_eval.bench.backbone import DTYPES, MID_SIZE, TINY
from kvcomp_eval.bench.decode import measure_decode
from kvcomp_eval.bench.prefill import measure_prefill
from kvcomp_eval.bench.quantities import Measurement, read_bandwidth
from kvcomp_eval.bench.tables import to_table

_LENGTHS = {"decode": [1024, 4096, 16384, 32768], "prefill": [1024, 4096]}
_REPEATS = {"decode": 20, "prefill": 5}


def build_parser() -> argparse.ArgumentParser:
    """Arguments of both benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m kvcomp_eval.bench", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    for name, text in (
        ("decode", "CPU time per generated token"),
        ("prefill", "CPU time of the prompt, with observation and packing"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "--contenders",
            nargs="+",
            default=["stock", "full", "snapkv", "hybridkv"],
            help="'stock' and names of registered methods (default: %(default)s)",
        )
        command.add_argument("--budget", type=float, default=0.1, help="budget_ratio, or entries above 1 (%(default)s)")
        command.add_argument("--lengths", type=int, nargs="+", default=_LENGTHS[name], help="prompt tokens")
        command.add_argument("--dtypes", nargs="+", choices=tuple(DTYPES), default=list(DTYPES))
        command.add_argument(
            "--layers",
            type=int,
            default=MID_SIZE.layers,
            help="fewer take less time at nearly the same ratios (%(default)s)",
        )
        command.add_argument("--repeats", type=int, default=_REPEATS[name], help="timed repetitions (%(default)s)")
        command.add_argument("--warmup", type=int, default=2 if name == "decode" else 1, help="untimed repetitions")
        command.add_argument("--quick", action="store_true", help="tiny backbone, one short prompt: does it run?")
        command.add_argument("--json", type=Path, metavar="FILE", help="write raw values here")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark, print its table; returns the exit code."""
    options = build_parser().parse_args(argv)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _run(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        torch.set_num_threads(threads)


def _run(options: argparse.Namespace) -> int:
    shape = TINY if options.quick else replace(MID_SIZE, layers=options.layers)
    lengths = [400] if options.quick else options.lengths
    repeats = 2 if options.quick else options.repeats
    bandwidth = read_bandwidth(32 if options.quick else 512)
    measurements: list[Measurement] = []
    for dtype in options.dtypes:
        for length in lengths:
            print(f"{options.benchmark}: {dtype}, {length} tokens ...", file=sys.stderr, flush=True)
            common = (options.contenders, options.budget, shape, length, dtype, repeats, options.warmup)
            if options.benchmark == "decode":
                measurements += measure_decode(*common, bandwidth)
            else:
                measurements += measure_prefill(*common)
            if options.json is not None:  # after each length, so that an interrupted run keeps what it has
                _write_json(options, bandwidth, measurements)
    print(f"budget {options.budget:g}; one thread, CPU time; measured read bandwidth {bandwidth / 1e9:.1f} GB/s")
    print(to_table(measurements))
    return 0


def _write_json(options: argparse.Namespace, bandwidth: float, measurements: Sequence[Measurement]) -> None:
    raw = {
        "benchmark": options.benchmark,
        "budget": options.budget,
        "layers": options.layers,
        "bandwidth_bytes_per_second": bandwidth,
        "measurements": [item.to_dict() for item in measurements],
    }
    options.json.write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
