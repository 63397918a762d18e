"""LOOK-M keeps and merges as mllm-kvcompress does: ``python -m tests.anchors.mllm_kvcompress_anchor``.

Not part of the test run. Both compress the same prompts of the demo model; kept sets and merged slots are compared per
layer and KV head, and a Markdown report is printed. The exit code is 1 unless every kept set is the same, and every
slot of the rules that both define alike, with a penalty that float32 can bear.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from tqdm import tqdm

from kvcomp_eval import attach, make_method
from tests.anchors.common import ask_peer, build_environment, introduction, load_prompts, overlap, parser

#: The commit with the reference code's semantics: every query row is summed, and all text stays.
SOURCE = "git+https://github.com/ChenHong30/mllm-kvcompress@eb93cce490f772e6234915b5c9a6b04bb3739ec5"
RATIOS = (0.8, 0.6)  # removed
#: What the peer subtracts from visual scores to put text first. Its own 1e4 leaves float32 steps of 1e-3, at which
#: scores tie; the other one is above every score of these prompts too, and leaves steps of 6e-5.
PENALTIES = (1e4, 1024.0)
#: Peer's merge -> ours.
MERGES = {"none": "none", "pivot": "pivotal", "average": "averaged", "weighted": "weighted"}
#: The peer's weighted merge takes ``w e + (1 - w) x`` of an evicted e, the paper's and ours ``w e``.
OTHERWISE = "weighted"
TOLERANCE = 1e-4


def our_slots(model: Any, inputs: dict[str, Any], merge: str, entries: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Kept positions, bool [L, Hkv, N], and slots, [L, Hkv, entries, 2 D] with keys before values."""
    method = make_method("lookm", merge=merge, budget_entries=entries)
    with attach(model, method, trace=True) as session:
        model.generate(**inputs, max_new_tokens=2, eos_token_id=None)
    layers = session.last_cache.packed_layers
    slots = [layer.store.groups[0].slots for layer in layers]  # all heads of a layer keep equally many
    packed = [torch.cat([one.keys[:, :entries], one.values[:, :entries]], dim=-1) for one in slots]
    return torch.stack([layer.trace[0][0] for layer in layers]), torch.stack(packed)


def main() -> int:
    """Compare and print."""
    made = parser(__doc__, "mllm-kvcompress")
    made.add_argument("--source", default=SOURCE, help="what pip installs: the repository, or a copy of it")
    options = made.parse_args()
    python = build_environment(options.environment, options.source)
    model, prompts = load_prompts(options.prompts)
    settings = [
        {"penalty": penalty, "ratio": ratio, "merge": merge}
        for penalty in PENALTIES
        for ratio in RATIOS
        for merge in (MERGES if penalty == PENALTIES[-1] else ["none"])
    ]
    peer = ask_peer(python, "mllm_kvcompress_peer.py", prompts, settings)
    rows, failed = [], False
    for setting, answers in zip(settings, peer["answers"], strict=True):
        ours = MERGES[setting["merge"]]
        overlaps, largest = [], 0.0
        for inputs, (kept, slots) in zip(tqdm(prompts, desc=str(setting)), answers, strict=True):
            our_kept, packed = our_slots(model, inputs, ours, slots.shape[2])
            overlaps += overlap(our_kept, kept)
            largest = max(largest, (packed - slots).abs().max().item())
        if setting["penalty"] == PENALTIES[-1]:
            failed |= min(overlaps) < 1 or (ours != OTHERWISE and largest > TOLERANCE)
        rows.append((*setting.values(), ours, len(overlaps), overlaps.count(1.0), f"{largest:.1e}"))
    print(introduction(peer["versions"], prompts))
    print("\n| penalty | removed | peer's merge | ours | kept sets compared | equal | largest difference of a slot |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print("|", *(f"{cell} |" for cell in row))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
