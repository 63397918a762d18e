"""DetailCaps (Dong et al. 2024, arXiv:2405.19092): detailed descriptions of images."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from kvcomp_eval.data.sources import Benchmark
from kvcomp_eval.metrics.captions import METRICS
from kvcomp_eval.tasks.base import Part
from kvcomp_eval.tasks.captions import CaptionTask
from kvcomp_eval.tasks.fidelity import FidelityTask

#: The three reference captions of an image; later commits of the data set correct them, so one is pinned.
REFERENCES = ("GT_Caption_GPT4O", "GT_Caption_GPT4V", "GT_Caption_Gemini15Pro")


class DetailCapsTask(CaptionTask):
    """Column ``binary`` holds the image file, ``image`` its name."""

    benchmark = Benchmark(
        "DetailCaps",
        ("KVCOMP_DETAILCAPS_ROOT",),
        "foundation-multimodal-models/DetailCaps-4870",
        "ec6ee4b",
        "971 MB",
    )
    patterns = ("*.parquet",)
    columns = ("image", "binary", "source", *REFERENCES)
    media_columns = ("binary",)
    corpus_metrics = METRICS

    def references(self, rows: Dataset) -> list[list[str]]:
        return [list(captions) for captions in zip(*(rows[name] for name in REFERENCES), strict=True)]

    def medium(self, doc: dict[str, Any]) -> Part:
        return {"type": "image", "url": {"path": doc["image"], "bytes": doc.get("binary")}}


class DetailCapsFidelity(FidelityTask, DetailCapsTask):
    """DetailCaps, scored against the uncompressed model's answers."""
