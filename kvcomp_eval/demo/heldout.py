"""The held-out documents: made from seeds that training never uses, drawn again on demand.

A document stores text only; its images are rendered from its seed when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from kvcomp_eval.demo.prompts import LABELS, make_question
from kvcomp_eval.demo.scenes import Scene, random_scene, render

#: One part of a message.
Part = TypeVar("Part")

HELD_OUT_SPLIT = 1  # first word of the seed sequence; training uses 0
TASKS: dict[str, tuple[str, ...]] = {
    "vqa": ("what", "colour", "what", "shape", "row"),
    "describe": ("describe",),
    "across": ("across",),
}
# Cells per side and images per prompt: prompts of 525 to 640 tokens.
GRID = 5
IMAGE_COUNTS = (5, 6)


def _generator(task: str, index: int) -> np.random.Generator:
    if task not in TASKS:
        raise ValueError(f"Unknown demo task {task!r}; choose one of {', '.join(TASKS)}.")
    return np.random.default_rng([HELD_OUT_SPLIT, list(TASKS).index(task), index])


def _scenes(rng: np.random.Generator, images: int) -> list[Scene]:
    return [random_scene(rng, GRID) for _ in range(images)]


def document(task: str, index: int) -> dict[str, Any]:
    """Return one held-out document: id, task, index, kind, images (a count), question and answer."""
    rng = _generator(task, index)
    kinds = TASKS[task]
    images = IMAGE_COUNTS[(index // len(kinds)) % len(IMAGE_COUNTS)]
    item = make_question(kinds[index % len(kinds)], _scenes(rng, images), rng)
    return {
        "id": f"{task}-{index}",
        "task": task,
        "index": index,
        "kind": item.kind,
        "images": images,
        "question": item.question,
        "answer": item.answer,
    }


def document_scenes(doc: dict[str, Any]) -> list[Scene]:
    """Return what the document's images show."""
    return _scenes(_generator(doc["task"], doc["index"]), doc["images"])


def render_images(doc: dict[str, Any]) -> list[np.ndarray]:
    """Return the document's images, uint8 [280, 280, 3] each."""
    rng = np.random.default_rng([HELD_OUT_SPLIT, list(TASKS).index(doc["task"]), doc["index"], 1])
    return [render(scene, rng) for scene in document_scenes(doc)]


def labelled(images: Iterable[Part], question: str, as_text: Callable[[str], Part]) -> list[Part]:
    """The content of a prompt: each image behind its label, then the question.

    Parameters
    ----------
    images : iterable
        In the form that the caller's messages have.
    as_text : callable
        Puts a label or the question into that form.
    """
    behind = [part for label, image in zip(LABELS, images, strict=False) for part in (as_text(label), image)]
    return [*behind, as_text(question)]
