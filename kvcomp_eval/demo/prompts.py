"""Questions about several scenes, and their reference answers, as plain text.

Every question names its image at its very end. Short answers start with content and have at least three
tokens: the first answer token comes out of the prefill, so a one-token answer would be the same under
every compression method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvcomp_eval.demo.scenes import COLOURS, SHAPES, SIZES, Scene

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")

QUESTIONS = {
    "what": (
        "please name the size , the colour and the shape of the object that you can see "
        "at row {row} and column {column} of the grid in image {image} ."
    ),
    "colour": (
        "please tell me only the colour , not the size or the shape , of the object that you can see "
        "at row {row} and column {column} of the grid in image {image} ."
    ),
    "shape": (
        "please tell me only the shape , not the size or the colour , of the object that you can see "
        "at row {row} and column {column} of the grid in image {image} ."
    ),
    "row": (
        "please list from left to right each object , with its size , its colour , its shape and its column , "
        "that you can see in row {row} of the grid in image {image} ."
    ),
    "across": (
        "please go through all of the images in order and name for each of them the object "
        "that you can see at row {row} and column {column} of its grid ."
    ),
    "describe": (
        "please describe row by row and from left to right each object , with its size , its colour , "
        "its shape and its column , that you can see in the grid in image {image} ."
    ),
}
KINDS = tuple(QUESTIONS)


@dataclass(frozen=True)
class QuestionAnswer:
    """One question with its reference answer; `kind` is a key of `QUESTIONS`."""

    kind: str
    question: str
    answer: str


def _row_text(scene: Scene, row: int) -> str:
    """List the objects of one row: "small red circle at column two , large blue ring at column four"."""
    parts = []
    for column in range(scene.grid):
        phrase = scene.phrase(row, column)
        if phrase is not None:
            parts.append(f"{phrase} at column {NUMBERS[column]}")
    return " , ".join(parts)


def _describe_text(scene: Scene) -> str:
    rows = [f"row {NUMBERS[r]} : {_row_text(scene, r) or 'empty'} ." for r in range(scene.grid)]
    return " ".join(rows)


def _across_text(scenes: list[Scene], row: int, column: int) -> str:
    parts = [f"image {NUMBERS[i]} : {s.phrase(row, column) or 'empty'}" for i, s in enumerate(scenes)]
    return " , ".join(parts) + " ."


def make_question(kind: str, scenes: list[Scene], rng: np.random.Generator) -> QuestionAnswer:
    """Draw one question of a kind; questions about one object ask for an occupied cell."""
    image = int(rng.integers(len(scenes)))
    scene = scenes[image]
    occupied = scene.occupied()
    row, column = occupied[int(rng.integers(len(occupied)))]
    phrase = scene.phrase(row, column) or ""
    _, colour, shape = phrase.split()
    if kind == "what":
        answer = phrase
    elif kind == "colour":
        answer = f"{colour} is its colour"
    elif kind == "shape":
        answer = f"{shape} is its shape"
    elif kind == "row":
        answer = _row_text(scene, row)
    elif kind == "across":
        answer = _across_text(scenes, row, column)
    elif kind == "describe":
        answer = _describe_text(scene)
    else:
        raise ValueError(f"Unknown question kind {kind!r}; choose one of {', '.join(KINDS)}.")
    question = QUESTIONS[kind].format(row=NUMBERS[row], column=NUMBERS[column], image=NUMBERS[image])
    return QuestionAnswer(kind, question, answer)


def vocabulary() -> list[str]:
    """Return every word that questions and answers can contain, sorted."""
    words = {"user", "assistant", "system", "is", "its", "colour", "shape", "at", "column", "row", "image"}
    words.update(("empty", ":", ",", ".", *NUMBERS, *SIZES, *COLOURS, *SHAPES))
    for template in QUESTIONS.values():
        words.update(w for w in template.split() if not w.startswith("{"))
    return sorted(words)
