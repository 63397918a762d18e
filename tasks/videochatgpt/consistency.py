"""Video-ChatGPT's consistency: two wordings of a question, each answered on its own, judged as a pair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from loguru import logger

from kvcomp_eval.data.sources import DataDamaged
from kvcomp_eval.metrics.judge import Judgement
from kvcomp_eval.metrics.videochatgpt import consistency_messages
from kvcomp_eval.tasks.base import not_computed
from kvcomp_eval.tasks.fidelity import FidelityTask
from kvcomp_eval.tasks.videochatgpt.task import VideoChatGPTTask, read_questions

#: What the hub's copy has where a row is about the other wording.
NO_QUESTION = ("None", "", None)


class ConsistencyTask(VideoChatGPTTask):
    """Documents come in pairs, neighbours in order; a pair of which one was left out by a limit is not judged."""

    def rows(self, questions: str, data_root: str | None, revision: str | None) -> Dataset:
        self.dimensions = ("consistency",)
        self._judged: tuple[Any, list[Judgement]] = (None, [])
        rows = read_questions(questions, ("question_1", "question_2"), data_root, revision)
        self._pairs = pairs(list(rows))
        return Dataset.from_list(
            [
                {"pair": number, "wording": wording, "question": question, **_shared(pair)}
                for number, pair in enumerate(self._pairs)
                for wording, question in enumerate(pair["questions"])
            ]
        )

    def score(self, doc: dict[str, Any], answer: str) -> dict[str, Any]:
        if self.judge is None:
            return dict.fromkeys(self.set_metrics)
        item = {"pair": doc["pair"], "wording": doc["wording"], "answer": answer}
        return dict.fromkeys(self.set_metrics, item)

    def aggregate(self, metric: str, items: Sequence[dict[str, Any]]) -> float | str:
        if self.judge is None:
            return not_computed(self._missing)
        judgements = self._judgements(items)
        if metric == "judge_failures":
            return sum(judgement.score is None for judgement in judgements)
        return self.mean(judgements)

    def _judgements(self, items: Sequence[dict[str, Any]]) -> list[Judgement]:
        """Ask the judge about every complete pair, once for all metrics."""
        if self._judged[0] != items:
            answers: dict[int, dict[int, str]] = defaultdict(dict)
            for item in items:
                answers[item["pair"]][item["wording"]] = item["answer"]
            complete = [(self._pairs[pair], both) for pair, both in answers.items() if len(both) == 2]
            if len(complete) < len(answers):
                logger.warning(f"{self.config.task}: {len(answers) - len(complete)} pairs have one answer; not judged.")
            asked = [
                consistency_messages(pair["questions"], pair["answer"], (both[0], both[1])) for pair, both in complete
            ]
            assert self.judge is not None
            self._judged = (list(items), self.judge.score(asked))
        return self._judged[1]


class ConsistencyFidelity(FidelityTask, ConsistencyTask):
    """Consistency, scored against the uncompressed model's answers."""


def pairs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bring both layouts into one: a row with both questions, or one row per wording, paired within a video.

    Returns
    -------
    list of dict
        ``video_name``, ``answer``, ``questions`` (two).
    """
    found: list[dict[str, Any]] = []
    waiting: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        questions = [row[name] for name in ("question_1", "question_2") if row[name] not in NO_QUESTION]
        if len(questions) == 2:
            found.append({**_shared(row), "questions": tuple(questions)})
        elif row["question_1"] not in NO_QUESTION:
            waiting[row["video_name"]].append(row)
        elif waiting[row["video_name"]]:
            first = waiting[row["video_name"]].pop(0)
            found.append({**_shared(first), "questions": (first["question_1"], row["question_2"])})
        else:
            raise DataDamaged(f"Video-ChatGPT's consistency question {row['question_2']!r} has no first wording.")
    alone = [row["question_1"] for rest in waiting.values() for row in rest]
    if alone:
        raise DataDamaged(f"Video-ChatGPT's consistency question {alone[0]!r} has no second wording.")
    return found


def _shared(row: dict[str, Any]) -> dict[str, Any]:
    return {"video_name": row["video_name"], "answer": row["answer"]}
