"""TextCaps (Sidorov et al. 2020, arXiv:2003.12462): captions that need the text in the image."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from kvcomp_eval.data.sources import Benchmark
from kvcomp_eval.tasks.base import Part
from kvcomp_eval.tasks.captions import CaptionTask
from kvcomp_eval.tasks.fidelity import FidelityTask


class TextCapsTask(CaptionTask):
    """Validation split: one row per image, its captions in ``caption_str``."""

    benchmark = Benchmark(
        "TextCaps",
        ("KVCOMP_TEXTCAPS_ROOT",),
        "lmms-lab-encoder/TextCaps",
        None,
        "the validation split",
    )
    patterns = ("val-*.parquet",)
    columns = ("image", "image_id", "caption_str")
    split = "val"
    media_columns = ("image",)

    def references(self, rows: Dataset) -> list[list[str]]:
        return [list(captions) for captions in rows["caption_str"]]

    def medium(self, doc: dict[str, Any]) -> Part:
        return {"type": "image", "url": doc.get("image")}


class TextCapsFidelity(FidelityTask, TextCapsTask):
    """TextCaps, scored against the uncompressed model's answers."""
