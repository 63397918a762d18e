"""Video-ChatGPT's benchmark (Maaz et al. 2023, arXiv:2306.05424): free answers about videos, scored 0 to 5 by a judge.

Its five dimensions come from three sets of questions: ``generic`` (correctness, detail, context), ``temporal``, and
``consistency``, where two wordings of one question are answered and judged together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from datasets import Dataset

from kvcomp_eval.data.sources import Benchmark, DataDamaged
from kvcomp_eval.data.tables import load_rows
from kvcomp_eval.data.videos import VideoFolder
from kvcomp_eval.metrics.judge import Judge, JudgeError, Judgement, summarise
from kvcomp_eval.metrics.result import NotComputed
from kvcomp_eval.metrics.videochatgpt import judge_messages
from kvcomp_eval.tasks.base import BenchmarkTask, Part, not_computed, text
from kvcomp_eval.tasks.fidelity import FidelityTask

BENCHMARK = Benchmark(
    "Video-ChatGPT",
    ("KVCOMP_VIDEOCHATGPT_ROOT",),
    "lmms-eval/VideoChatGPT",
    None,
    "the questions (the videos are several archives more)",
)
#: Sets of questions that are judged answer by answer, and the dimensions of each.
DIMENSIONS = {"generic": ("correctness", "detailed_orientation", "context"), "temporal": ("temporal",)}
#: Column names of the authors' files, as the hub's copy calls them.
RENAMED = {"Q": "question", "A": "answer", "Q1": "question_1", "Q2": "question_2"}


class VideoChatGPTTask(BenchmarkTask):
    """``dataset_kwargs`` of the YAML: ``questions`` (which set), ``data_root``, ``revision``.

    Results are lmms-eval's ``gpt_eval_score_*``, and ``judge_failures``, the number of questions that the judge left
    unanswered; those are not scored as 0. Without a working judge nothing is scored and the answers are kept.
    """

    lower_is_better = ("judge_failures",)

    def documents(self, questions: str, data_root: str | None = None, revision: str | None = None) -> Dataset:
        rows = self.rows(questions, data_root, revision)
        self.videos = VideoFolder(BENCHMARK, rows["video_name"], "videochatgpt/Test_Videos", data_root)
        self.set_metrics = (*(f"gpt_eval_score_{name}" for name in self.dimensions), "judge_failures")
        self.judge: Judge | None = None
        try:
            judge = Judge.from_environment()
            judge.preflight()
        except JudgeError as error:
            self._missing = NotComputed(str(error))
        else:
            self.judge = judge
            self.config.metadata["judge_model"] = judge.model
        return rows

    def rows(self, questions: str, data_root: str | None, revision: str | None) -> Dataset:
        """Read the questions; sets which dimensions they are judged on."""
        if questions not in DIMENSIONS:
            raise ValueError(f"questions={questions!r} is not one of {', '.join(DIMENSIONS)}.")
        self.dimensions = DIMENSIONS[questions]
        return read_questions(questions, ("question",), data_root, revision)

    def unavailable(self) -> dict[str, str]:
        return {} if self.judge else dict.fromkeys(self.set_metrics, self._missing.reason)

    def content(self, doc: dict[str, Any]) -> list[Part]:
        return [{"type": "video", "url": self.videos.path(doc["video_name"])}, text(doc["question"])]

    def doc_to_target(self, doc: dict[str, Any]) -> str:
        return doc["answer"]

    def score(self, doc: dict[str, Any], answer: str) -> dict[str, Any]:
        if self.judge is None:
            return dict.fromkeys(self.set_metrics)
        asked = [judge_messages(name, doc["question"], doc["answer"], answer) for name in self.dimensions]
        judgements = self.judge.score(asked)
        failures = sum(judgement.score is None for judgement in judgements)
        return dict(zip(self.set_metrics, [*map(logged, judgements), failures], strict=True))

    def aggregate(self, metric: str, items: Sequence[Any]) -> float | str:
        if self.judge is None:
            return not_computed(self._missing)
        if metric == "judge_failures":
            return sum(items)
        return self.mean([Judgement(item.get("score"), error=item.get("error")) for item in items])

    def mean(self, judgements: Sequence[Judgement]) -> float | str:
        """Mean score, or why there is none."""
        assert self.judge is not None
        mean = summarise(judgements, self.judge.model).mean
        return not_computed(mean) if isinstance(mean, NotComputed) else mean


class VideoChatGPTFidelity(FidelityTask, VideoChatGPTTask):
    """VideoChatGPT, scored against the uncompressed model's answers."""


def logged(judgement: Judgement) -> dict[str, Any]:
    """A judgement for the log of samples; one without a score has no such key, or lmms-eval would average it."""
    return {name: value for name, value in asdict(judgement).items() if value is not None}


def read_questions(
    questions: str, columns: Sequence[str], data_root: str | None = None, revision: str | None = None
) -> Dataset:
    """Rows of one set of questions: the authors' ``<set>_qa.json``, or the hub's table."""
    name = questions.capitalize()
    rows = load_rows(
        BENCHMARK,
        (f"{questions}_qa.json", f"{name}/test-*.parquet"),
        ("video_name",),
        configuration=name,
        data_root=data_root,
        revision=revision,
    )
    rows = rows.rename_columns({old: new for old, new in RENAMED.items() if old in rows.column_names})
    wanted = ("video_name", "answer", *columns)
    absent = [column for column in wanted if column not in rows.column_names]
    if absent:
        raise DataDamaged(
            f"Video-ChatGPT's {questions} questions have no column {', '.join(absent)}; "
            f"they have {', '.join(rows.column_names)}."
        )
    return rows.select_columns(list(wanted))
