"""The peer's half of ``kvpress_anchor.py``; runs in an environment of its own, with kvpress and without kvcomp-eval."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from kvpress import SnapKVPress
from transformers import Qwen2_5_VLForConditionalGeneration


class RecordingPress(SnapKVPress):
    """SnapKVPress that notes which rows of the keys it was given are among those it gives back."""

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        kept_keys, kept_values = super().compress(module, hidden_states, keys, values, attentions, kwargs)
        is_kept = (keys[0, :, :, None] == kept_keys[0, :, None]).all(-1).any(-1)  # [Hkv, N]
        assert (is_kept.sum(-1) == kept_keys.shape[2]).all(), "two tokens of a head have the same key"
        self.kept.append(is_kept)
        return kept_keys, kept_values


@torch.inference_mode()
def kept_by(model, setting, inputs):
    """Positions that kvpress keeps of one prompt, bool [L, Hkv, N]."""
    press = RecordingPress(**setting)
    press.kept = []
    with press(model):
        model(**inputs, use_cache=True)
    return torch.stack(press.kept)


def main(folder: Path) -> None:
    """Answer the job with the kept positions per setting and prompt."""
    logging.getLogger("kvpress").setLevel(logging.ERROR)  # it warns about every multimodal model
    job = torch.load(folder / "job.pt")
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        job["model"], dtype=torch.float32, attn_implementation="eager"
    ).eval()
    kept = [[kept_by(model, setting, inputs) for inputs in job["prompts"]] for setting in job["settings"]]
    versions = {package: version(package) for package in ("kvpress", "transformers", "torch")}
    torch.save({"kept": kept, "versions": versions}, folder / "answer.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
