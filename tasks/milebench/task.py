"""MileBench: prompts and scores as in the official code (github.com/MileBench/MileBench, utils.py and evaluate.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from lmms_eval.api.metrics import mean

from kvcomp_eval.data.milebench import PLACEHOLDER, REVISION, find_subset, read_subset
from kvcomp_eval.data.sources import DataDamaged
from kvcomp_eval.metrics import milebench as scorer
from kvcomp_eval.tasks.base import BenchmarkTask, Part, text
from kvcomp_eval.tasks.fidelity import FidelityTask

#: The benchmark calls samples Few, Medium or Many by their images; a level's mean is reported beside the whole's.
LEVELS = ("few", "medium", "many")


class MileBenchTask(BenchmarkTask):
    """One subset; ``dataset_kwargs`` of the YAML names it: ``subset``, and optionally ``variant``, ``data_root``.

    Metrics are ``rouge_l`` or ``accuracy`` of the official scorer, as the subset asks; the same as ``milebench_score``,
    whose mean over a group's subsets is what papers call the average; the same per level; and the sane scorer's.
    """

    def documents(
        self, subset: str, variant: str = "test", data_root: str | None = None, revision: str = REVISION
    ) -> Dataset:
        self.subset, self.variant = subset, variant
        samples = read_subset(subset, find_subset(subset, data_root, revision), variant)
        self.rule = scorer.scoring_rule(subset, samples[0]["question_type"])
        self.metric = scorer.metric_name(self.rule)
        self.metrics = (self.metric, "milebench_score", f"sane_{self.metric}")
        present = {scorer.image_level(sample["num_images"]).lower() for sample in samples}
        self.levels = [level for level in LEVELS if level in present]
        self.set_metrics = tuple(f"{self.metric}_{level}" for level in self.levels)
        if self.rule == "choice":
            _check_answers(subset, samples)
        return Dataset.from_list(samples)

    def content(self, doc: dict[str, Any]) -> list[Part]:
        context = doc["context"] + choice_text(doc["choices"], lettered=self.subset != "GPR1200")
        if self.variant == "combined_1":
            return combined_prompt(doc["instruction"], context, doc["images"], doc["num_images"])
        return interleaved_prompt(doc["instruction"], context, doc["images"])

    def doc_to_target(self, doc: dict[str, Any]) -> str:
        return doc["answer"]

    def score(self, doc: dict[str, Any], answer: str) -> dict[str, Any]:
        sample = (answer, doc["answer"], self.rule, doc["choices"])
        official = scorer.official_score(*sample)
        own = scorer.image_level(doc["num_images"]).lower()
        levels = {f"{self.metric}_{level}": official if level == own else None for level in self.levels}
        sane = {f"sane_{self.metric}": scorer.sane_score(*sample)}
        return {**levels, **sane, self.metric: official, "milebench_score": official}

    def aggregate(self, metric: str, items: Sequence[float | None]) -> float | None:
        """Mean of the samples of a level; None if there are none."""
        present = [item for item in items if item is not None]
        return mean(present) if present else None


class MileBenchFidelity(FidelityTask, MileBenchTask):
    """MileBench, scored against the uncompressed model's answers."""


def _check_answers(subset: str, samples: Sequence[dict[str, Any]]) -> None:
    """Every answer must be a choice; the scorer could not say right or wrong."""
    for sample in samples:
        if scorer.process(sample["answer"]) not in map(scorer.process, sample["choices"]):
            raise DataDamaged(
                f"MileBench/{subset}, sample {sample['sample_id']}: the answer {sample['answer']!r} is not among the "
                f"choices {', '.join(map(repr, sample['choices']))}."
            )


def choice_text(choices: Sequence[str], lettered: bool) -> str:
    """The list of choices behind the question; empty for open-ended ones."""
    if not choices:
        return ""
    lines = [f"{chr(ord('A') + index)}. {choice}" if lettered else choice for index, choice in enumerate(choices)]
    return "\nChoice list: \n" + "\n".join(lines) + "\nYour answer is: "


def interleaved_prompt(instruction: str, context: str, images: Sequence[str]) -> list[Part]:
    """Instruction, then the context with each image where its placeholder stands.

    Images are bound to placeholders from the last one backwards, in order of appearance (for ascending numbers this is
    the same as by number). One image more than placeholders stands before the context; of more, the first are dropped.
    Placeholders beyond the images stay text. Where there are more placeholders than images, numbers decide.
    """
    pieces = _split(context, len(images))  # text, number, text, ..., text
    numbers = [int(number) - 1 for number in pieces[1::2]]
    bound = [images[number] for number in numbers]
    front: list[str] = []
    if len(numbers) <= len(images):
        kept = list(images[-len(numbers) - 1 :])
        front = kept[: len(kept) - len(numbers)]
        bound = kept[len(front) :]
    parts = [text(instruction + "\n"), *map(_image, front), text(pieces[0])]
    for image, words in zip(bound, pieces[2::2], strict=True):
        parts += [_image(image), text(words)]
    return _merged(parts)


def combined_prompt(instruction: str, context: str, images: Sequence[str], num_images: int) -> list[Part]:
    """One picture that holds all images, then instruction and context, which name them ``<Image 1>``."""
    pieces = _split(context, num_images)
    named = pieces[0] + "".join(
        f"<Image {number}> {words}" for number, words in zip(pieces[1::2], pieces[2::2], strict=True)
    )
    return [*map(_image, images), text(f"\n{instruction}\n{named}")]


def _split(context: str, num_images: int) -> list[str]:
    """Split a context at its placeholders of images that exist: text, number, text, ..., text."""
    pieces = [""]
    position = 0
    for match in PLACEHOLDER.finditer(context):
        if 1 <= int(match[1]) <= num_images:
            pieces[-1] += context[position : match.start()]
            pieces += [match[1], ""]
            position = match.end()
    pieces[-1] += context[position:]
    return pieces


def _image(path: str) -> Part:
    return {"type": "image", "url": path}


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Join neighbouring texts and drop empty ones."""
    merged: list[Part] = []
    for part in parts:
        if part["type"] == "text" and merged and merged[-1]["type"] == "text":
            merged[-1] = text(merged[-1]["text"] + part["text"])
        elif part["type"] != "text" or part["text"]:
            merged.append(part)
    return merged
