"""Questions about several scenes, and their reference answers, as plain text.

Every question names its image at its very end. Short answers start with content and have at least three
tokens: the first answer token comes out of the prefill, so a one-token answer would be the same under
every compression method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvcomp_eval.demo.scenes import COLOURS, SHAPES, SIZES, Scene

# Rows, columns and images have words of their own, so that no word needs its neighbour to be understood.
ROWS = ("first", "second", "third", "fourth", "fifth")
COLUMNS = ("one", "two", "three", "four", "five")
IMAGES = ("1", "2", "3", "4", "5", "6", "7", "8")
# Stands before each picture: without it the model must count pictures, which it learns very slowly.
LABELS = tuple(f"image {name}" for name in IMAGES)

QUESTIONS = {
    "what": "which object is in the {row} row , column {column} , of image {image} ?",
    "colour": "which colour has the object in the {row} row , column {column} , of image {image} ?",
    "shape": "which shape has the object in the {row} row , column {column} , of image {image} ?",
    "row": "which objects are in the {row} row of image {image} ?",
    "across": "which objects are in the {row} row , column {column} , of each of the images ?",
    "describe": "please describe all objects , row by row , of image {image} .",
}
KINDS = tuple(QUESTIONS)


@dataclass(frozen=True)
class QuestionAnswer:
    """One question with its reference answer; `kind` is a key of `QUESTIONS`."""

    kind: str
    question: str
    answer: str


def _row_text(scene: Scene, row: int) -> str:
    """List the objects of one row: "column two small red circle , column four large blue ring"."""
    parts = []
    for column in range(scene.grid):
        phrase = scene.phrase(row, column)
        if phrase is not None:
            parts.append(f"column {COLUMNS[column]} {phrase}")
    return " , ".join(parts)


def _describe_text(scene: Scene) -> str:
    rows = [f"{ROWS[r]} row : {_row_text(scene, r) or 'empty'} ." for r in range(scene.grid)]
    return " ".join(rows)


def _across_text(scenes: list[Scene], row: int, column: int) -> str:
    parts = [f"image {IMAGES[i]} : {s.phrase(row, column) or 'empty'}" for i, s in enumerate(scenes)]
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
    question = QUESTIONS[kind].format(row=ROWS[row], column=COLUMNS[column], image=IMAGES[image])
    return QuestionAnswer(kind, question, answer)


def vocabulary() -> list[str]:
    """Return every word that questions and answers can contain, sorted."""
    words = {"user", "assistant", "system", "is", "its", "colour", "shape", "at", "column", "row", "image"}
    words.update(("empty", ":", ",", ".", *ROWS, *COLUMNS, *IMAGES, *SIZES, *COLOURS, *SHAPES))
    for template in QUESTIONS.values():
        words.update(w for w in template.split() if not w.startswith("{"))
    return sorted(words)
