"""The peer's half of ``mllm_kvcompress_anchor.py``; runs in an environment of its own, without kvcomp-eval."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import torch
from mllm_kvcompress import LookM, compress
from mllm_kvcompress.methods import merging
from transformers import Qwen2_5_VLForConditionalGeneration


class RecordingLookM(LookM):
    """LookM that notes which positions it keeps, which it does before it merges, and the slots that it makes."""

    def compress(self, ctx):
        merge, self.merge = self.merge, "none"
        unmerged, _ = super().compress(ctx)
        self.merge = merge
        keys, values = super().compress(ctx)
        self.kept.append((ctx.keys[0, :, :, None] == unmerged[0, :, None]).all(-1).any(-1))  # [Hkv, N]
        self.slots.append(torch.cat([keys[0], values[0]], dim=-1))
        return keys, values


@torch.inference_mode()
def compressed(model, setting, inputs):
    """Kept positions, bool [L, Hkv, N], and slots, [L, Hkv, k, 2 D]."""
    merging.TEXT_PRIOR_PENALTY = setting["penalty"]
    method = RecordingLookM(ratio=setting["ratio"], merge=setting["merge"])
    method.kept, method.slots = [], []
    with compress(model, method):
        model(**inputs, use_cache=True)
    return torch.stack(method.kept), torch.stack(method.slots)


def main(folder: Path) -> None:
    """Answer the job with kept positions and slots per setting and prompt."""
    job = torch.load(folder / "job.pt")
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        job["model"], dtype=torch.float32, attn_implementation="eager"
    ).eval()
    answers = [[compressed(model, setting, inputs) for inputs in job["prompts"]] for setting in job["settings"]]
    versions = {package: version(package) for package in ("mllm-kvcompress", "transformers", "torch")}
    torch.save({"answers": answers, "versions": versions}, folder / "answer.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
