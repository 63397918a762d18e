"""NExT-QA, open-ended (Xiao et al. 2021, arXiv:2105.08276): why, how, when and what in videos of daily life."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from lmms_eval.api.metrics import mean

from kvcomp_eval.data.sources import Benchmark
from kvcomp_eval.data.tables import load_rows
from kvcomp_eval.data.videos import VideoFolder
from kvcomp_eval.metrics.result import NotComputed
from kvcomp_eval.metrics.wups import Rule, Wups
from kvcomp_eval.tasks.base import BenchmarkTask, Part, not_computed, text
from kvcomp_eval.tasks.fidelity import FidelityTask

BENCHMARK = Benchmark(
    "NExT-QA",
    ("KVCOMP_NEXTQA_ROOT",),
    "lmms-eval/NExTQA",
    None,
    "the questions (the videos are several archives more)",
)
COLUMNS = ("video", "question", "answer", "qid", "type")
#: Second reference of the test split; the validation split has none.
ADDITIONAL = "additional_ref_answer"
#: Questions by the first letter of their type: causal, temporal, descriptive.
GROUPS = {"C": "WUPS_C", "T": "WUPS_T", "D": "WUPS_D"}


class NextQATask(BenchmarkTask):
    """``dataset_kwargs`` of the YAML: ``split`` (``test`` or ``validation``), ``data_root``, ``revision``.

    All figures are x 100. ``WUPS`` follows today's nltk (what lmms-eval gives), ``WUPS_legacy`` the official stack;
    ``WUPS_0.9``, ``WUPS_C``, ``WUPS_T`` and ``WUPS_D`` are parts of the former.
    """

    metrics: tuple[str, ...] = ("WUPS", "WUPS_legacy", "WUPS_0.9")
    set_metrics = tuple(GROUPS.values())

    def documents(self, split: str = "test", data_root: str | None = None, revision: str | None = None) -> Dataset:
        files = ("val*.csv", "OE/validation-*.parquet") if split == "validation" else ("test*.csv", "OE/test-*.parquet")
        rows = load_rows(
            BENCHMARK, files, COLUMNS, configuration="OE", split=split, data_root=data_root, revision=revision
        )
        self.videos = VideoFolder(BENCHMARK, map(str, rows["video"]), "nextqa/NExTVideo", data_root)
        self._scorers: dict[Rule, Wups] = {}
        try:
            self._scorers = {"modern": Wups("modern"), "legacy": Wups("legacy")}
        except FileNotFoundError as error:
            self._missing = NotComputed(str(error))
            self.metrics, self.set_metrics = (), (*type(self).metrics, *type(self).set_metrics)
        return rows.select_columns([name for name in (*COLUMNS, ADDITIONAL) if name in rows.column_names])

    def unavailable(self) -> dict[str, str]:
        return {} if self._scorers else dict.fromkeys(self.set_metrics, self._missing.reason)

    def content(self, doc: dict[str, Any]) -> list[Part]:
        question = doc["question"].strip() + self.lmms_eval_specific_kwargs["post_prompt"]
        return [{"type": "video", "url": self.videos.path(str(doc["video"]))}, text(question)]

    def doc_to_target(self, doc: dict[str, Any]) -> str:
        return doc["answer"]

    def score(self, doc: dict[str, Any], answer: str) -> dict[str, Any]:
        if not self._scorers:
            return dict.fromkeys(self.set_metrics)
        pair = (answer, doc["answer"], doc["type"], doc.get(ADDITIONAL))
        modern = 100 * self._scorers["modern"].score(*pair)
        return {
            "WUPS": modern,
            "WUPS_legacy": 100 * self._scorers["legacy"].score(*pair),
            "WUPS_0.9": 100 * self._scorers["modern"].score(*pair, threshold=0.9),
            **{name: modern if doc["type"].startswith(letter) else None for letter, name in GROUPS.items()},
        }

    def aggregate(self, metric: str, items: Sequence[float | None]) -> float | str | None:
        """Mean of the questions of a group; None if there are none."""
        if not self._scorers:
            return not_computed(self._missing)
        present = [item for item in items if item is not None]
        return mean(present) if present else None


class NextQAFidelity(FidelityTask, NextQATask):
    """NextQA, scored against the uncompressed model's answers."""
