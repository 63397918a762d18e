"""What the captioning tasks share: one prompt per image or video, and scores of the whole set of captions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from datasets import Dataset

from kvcomp_eval.data.sources import Benchmark
from kvcomp_eval.data.tables import load_rows
from kvcomp_eval.metrics.captions import (
    METRICS,
    PYTHON_TOKENS,
    CaptionScore,
    NotComputed,
    caption_scores,
    missing_requirements,
)
from kvcomp_eval.metrics.rouge import rouge_l
from kvcomp_eval.tasks.base import BenchmarkTask, Part, not_computed, text


class CaptionTask(BenchmarkTask):
    """Captions against several references.

    ``dataset_kwargs`` of the YAML: ``first`` (take only so many documents), ``data_root``, ``revision``. The prompt is
    ``lmms_eval_specific_kwargs.default.prompt``.

    Results are the metrics of the COCO evaluation, which pool all documents, and ``rouge_l``, the mean over documents
    of the best ROUGE-L F1 (``rouge-score``) over the references, which needs neither Java nor a model.
    """

    benchmark: ClassVar[Benchmark]
    patterns: ClassVar[tuple[str, ...]]
    columns: ClassVar[tuple[str, ...]]
    configuration: ClassVar[str | None] = None
    split: ClassVar[str] = "test"
    corpus_metrics: ClassVar[tuple[str, ...]] = tuple(name for name in METRICS if name != "CAPTURE")
    metrics = ("rouge_l",)

    @abstractmethod
    def references(self, rows: Dataset) -> list[list[str]]:
        """Reference captions of every row."""

    @abstractmethod
    def medium(self, doc: dict[str, Any]) -> Part:
        """The image or video to describe."""

    def documents(self, first: int | None = None, data_root: str | None = None, revision: str | None = None) -> Dataset:
        rows = load_rows(
            self.benchmark,
            self.patterns,
            self.columns,
            configuration=self.configuration,
            split=self.split,
            data_root=data_root,
            revision=revision,
        )
        rows = rows.select_columns(list(self.columns)).select(range(min(first or len(rows), len(rows))))
        spare = [f"{name}{PYTHON_TOKENS}" for name in self.unavailable() if name not in ("METEOR", "CAPTURE")]
        self.set_metrics = (*self.corpus_metrics, *spare)
        self._references = self.references(rows)
        self._scored: tuple[Any, dict[str, CaptionScore | NotComputed]] = (None, {})
        return rows.add_column("row", list(range(len(rows))))

    def content(self, doc: dict[str, Any]) -> list[Part]:
        return [self.medium(doc), text(self.lmms_eval_specific_kwargs["prompt"])]

    def doc_to_target(self, doc: dict[str, Any]) -> str:
        return "\n".join(self._references[doc["row"]])

    def score(self, doc: dict[str, Any], answer: str) -> dict[str, Any]:
        """The answer itself for metrics of the set; references are looked up, not written to every log line."""
        best = max(rouge_l(answer, reference) for reference in self._references[doc["row"]])
        item = {"row": doc["row"], "answer": answer}
        return {"rouge_l": best, **dict.fromkeys(self.set_metrics, item)}

    def aggregate(self, metric: str, items: Sequence[dict[str, Any]]) -> float | str:
        score = self._scores(items)[metric]
        return not_computed(score) if isinstance(score, NotComputed) else score.value

    def unavailable(self) -> dict[str, str]:
        return {name: missing.reason for name, missing in missing_requirements(self.corpus_metrics).items()}

    def _scores(self, items: Sequence[dict[str, Any]]) -> dict[str, CaptionScore | NotComputed]:
        """All metrics of the set; they share tokens, and lmms-eval asks for one after the other."""
        captions = [(item["row"], item["answer"]) for item in items]
        if self._scored[0] != captions:
            references = [self._references[row] for row, _ in captions]
            scores = caption_scores([answer for _, answer in captions], references, self.corpus_metrics)
            self._scored = (captions, scores)
        return self._scored[1]
