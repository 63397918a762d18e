"""TextVQA (Singh et al. 2019, arXiv:1904.08920): questions about text in images, ten answers each."""

from __future__ import annotations

from statistics import mean
from typing import Any

from datasets import Dataset
from lmms_eval.tasks._task_utils.vqa_eval_metric import EvalAIAnswerProcessor

from kvcomp_eval.data.sources import Benchmark
from kvcomp_eval.data.tables import load_rows
from kvcomp_eval.tasks.base import BenchmarkTask, Part, text
from kvcomp_eval.tasks.fidelity import FidelityTask

BENCHMARK = Benchmark("TextVQA", ("KVCOMP_TEXTVQA_ROOT",), "lmms-lab-encoder/textvqa", None, "the validation split")
COLUMNS = ("image", "question", "question_id", "answers")


class TextVQATask(BenchmarkTask):
    """Validation split; metric ``exact_match`` is the VQA accuracy, as lmms-eval's ``textvqa_val`` calls it."""

    metrics = ("exact_match",)
    media_columns = ("image",)

    def documents(self, data_root: str | None = None, revision: str | None = None) -> Dataset:
        self.normalise = EvalAIAnswerProcessor()
        patterns = ("validation-*.parquet",)
        rows = load_rows(BENCHMARK, patterns, COLUMNS, split="validation", data_root=data_root, revision=revision)
        return rows.select_columns(list(COLUMNS))

    def content(self, doc: dict[str, Any]) -> list[Part]:
        words = doc["question"].capitalize() + self.lmms_eval_specific_kwargs["post_prompt"]
        return [{"type": "image", "url": doc.get("image")}, text(words)]

    def doc_to_target(self, doc: dict[str, Any]) -> str:
        return max(doc["answers"], key=doc["answers"].count)

    def score(self, doc: dict[str, Any], answer: str) -> dict[str, Any]:
        """VQA accuracy: for each of the ten people, min(1, others who gave this answer / 3); the mean of that."""
        given = self.normalise(answer)
        matches = [self.normalise(other) == given for other in doc["answers"]]
        return {"exact_match": mean(min(1.0, (sum(matches) - match) / 3) for match in matches)}


class TextVQAFidelity(FidelityTask, TextVQATask):
    """TextVQA, scored against the uncompressed model's answers."""
