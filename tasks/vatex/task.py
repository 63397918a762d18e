"""VATEX (Wang et al. 2019, arXiv:1904.03493): one-sentence captions of ten-second videos, ten references each."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import lmms_eval.tasks
from datasets import Dataset
from lmms_eval.utils import load_yaml_config

from kvcomp_eval.data.sources import Benchmark
from kvcomp_eval.data.videos import VideoFolder
from kvcomp_eval.tasks.base import Part, text
from kvcomp_eval.tasks.captions import CaptionTask
from kvcomp_eval.tasks.fidelity import FidelityTask


class VatexTask(CaptionTask):
    """Test split, English captions."""

    benchmark = Benchmark(
        "VATEX",
        ("KVCOMP_VATEX_ROOT",),
        "lmms-eval/VATEX",
        None,
        "the annotations (the videos are several archives more)",
    )
    patterns = ("vatex_*test*.json", "vatex_test/test-*.parquet", "test-*.parquet")
    columns = ("videoID", "enCap")
    configuration = "vatex_test"

    def documents(self, first: int | None = None, data_root: str | None = None, revision: str | None = None) -> Dataset:
        rows = super().documents(first, data_root, revision)
        self.videos = VideoFolder(self.benchmark, rows["videoID"], "vatex_test", data_root)
        return rows

    def content(self, doc: dict[str, Any]) -> list[Part]:
        return [self.medium(doc), text(stock_prompt())]

    def references(self, rows: Dataset) -> list[list[str]]:
        return [list(captions) for captions in rows["enCap"]]

    def medium(self, doc: dict[str, Any]) -> Part:
        return {"type": "video", "url": self.videos.path(doc["videoID"])}


class VatexFidelity(FidelityTask, VatexTask):
    """Vatex, scored against the uncompressed model's answers."""


@lru_cache
def stock_prompt() -> str:
    """The prompt of lmms-eval's ``vatex_test``, read from there: an instruction and four captions as examples."""
    from lmms_eval.tasks.vatex.utils import vatex_test_doc_to_text

    stock = Path(lmms_eval.tasks.__file__).parent / "vatex" / "vatex_test.yaml"
    config = load_yaml_config(str(stock), mode="simple")
    return vatex_test_doc_to_text({}, config["lmms_eval_specific_kwargs"]["default"])
