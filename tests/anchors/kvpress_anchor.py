"""SnapKV keeps the same entries as NVIDIA's kvpress 0.5.5: ``python -m tests.anchors.kvpress_anchor``.

Not part of the test run. Both select from the same prompts of the demo model; the kept sets are compared per layer and
KV head, and a Markdown report is printed. The exit code is 1 unless every kept set is the same.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from tqdm import tqdm

from kvcomp_eval import SnapKV, attach
from tests.anchors.common import ask_peer, build_environment, introduction, load_prompts, overlap, parser

REQUIREMENTS = ("kvpress==0.5.5", "cachetools<6", "fire<0.7", "termcolor")
#: What kvpress is given; the ratio is what it removes.
SETTINGS = (
    {"compression_ratio": 0.8, "window_size": 32, "kernel_size": 5},
    {"compression_ratio": 0.9, "window_size": 32, "kernel_size": 5},
    {"compression_ratio": 0.6, "window_size": 8, "kernel_size": 7},
)


def our_kept(model: Any, inputs: dict[str, Any], setting: dict[str, Any], entries: int) -> torch.Tensor:
    """Prompt positions that the first decode step attends to, bool [L, Hkv, N]."""
    method = SnapKV(budget_entries=entries, window=setting["window_size"], kernel=setting["kernel_size"])
    with attach(model, method, trace=True) as session:
        model.generate(**inputs, max_new_tokens=2, eos_token_id=None)
    return torch.stack([layer.trace[0][0] for layer in session.last_cache.packed_layers])


def main() -> int:
    """Compare and print."""
    options = parser(__doc__, "kvpress").parse_args()
    python = build_environment(options.environment, *REQUIREMENTS)
    model, prompts = load_prompts(options.prompts)
    peer = ask_peer(python, "kvpress_peer.py", prompts, SETTINGS)
    rows = []
    for setting, kept in zip(SETTINGS, peer["kept"], strict=True):
        counts = [int(theirs[0, 0].sum()) for theirs in kept]
        cases = list(zip(prompts, kept, counts, strict=True))
        overlaps = [
            value
            for inputs, theirs, count in tqdm(cases, desc=str(setting))
            for value in overlap(our_kept(model, inputs, setting, count), theirs)
        ]
        rows.append([*setting.values(), f"{min(counts)} to {max(counts)}", overlaps])
    print(introduction(peer["versions"], prompts))
    print("\n| removed | window | kernel | entries kept per head | kept sets compared | equal | least overlap |")
    print("|---|---|---|---|---|---|---|")
    for *cells, overlaps in rows:
        print("|", *(f"{cell} |" for cell in (*cells, len(overlaps), overlaps.count(1.0))), f"{min(overlaps):.3f} |")
    return int(min(min(overlaps) for *_, overlaps in rows) < 1)


if __name__ == "__main__":
    sys.exit(main())
