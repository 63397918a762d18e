"""Packed training batches: the images once, then many independent question/answer segments.

A segment attends to the image prefix and to itself, and its positions restart after the images, so it
sees exactly what it sees at inference, while the prefix is computed once. All samples of a batch have the
same number of images and grid size, hence one prefix layout; segments of similar length form a group and
are padded on the right, where the causal mask hides the padding from every real token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from kvcomp_eval.demo.build import END, IMAGE, PIXEL_MEAN, PIXEL_STD, START, VISION_END, VISION_START
from kvcomp_eval.demo.prompts import LABELS, make_question
from kvcomp_eval.demo.scenes import Scene, random_scene, render

PATCH, MERGE, TEMPORAL = 14, 2, 2
IGNORE = -100
# Kinds that are drawn for each sample, by group of similar segment length.
SHORT_KINDS = (*("what",) * 6, "colour", "shape")
MEDIUM_KINDS = ("row", "row", "across")
LONG_KINDS = ("describe", "describe")


@dataclass
class Group:
    """Segments of similar length: `ids` and `labels` int64 [samples, segments, length]."""

    ids: torch.Tensor
    labels: torch.Tensor


@dataclass
class Batch:
    """One packed batch.

    Parameters
    ----------
    pixel_values : torch.Tensor
        float32 [samples * images * patches, 1176], as the stock image processor gives them.
    objects : torch.Tensor
        int64 [samples * images, grid, grid, 3], targets of the auxiliary vision heads.
    images, grid : int
        Images per sample, cells per side.
    groups : list of Group
        The text segments; empty while only the vision tower is trained.
    """

    pixel_values: torch.Tensor
    objects: torch.Tensor
    images: int
    grid: int
    groups: list[Group]


def patchify(images: np.ndarray) -> torch.Tensor:
    """Turn uint8 [N, side, side, 3] into the patches of the stock image processor, [N * patches, 1176]."""
    count, side = images.shape[:2]
    blocks = side // (PATCH * MERGE)
    pixels = torch.from_numpy(images).float().mul_(1 / 255).sub_(PIXEL_MEAN).div_(PIXEL_STD)
    pixels = pixels.view(count, blocks, MERGE, PATCH, blocks, MERGE, PATCH, 3)
    patches = pixels.permute(0, 1, 4, 2, 5, 7, 3, 6)[:, :, :, :, :, :, None]
    patches = patches.expand(-1, -1, -1, -1, -1, -1, TEMPORAL, -1, -1)
    return patches.reshape(-1, 3 * TEMPORAL * PATCH * PATCH)


def prefix_ids(tokenizer: PreTrainedTokenizerBase, images: int, grid: int) -> list[int]:
    """Token ids of the chat prompt up to and including the last image."""
    picture = f"{VISION_START}{IMAGE * (MERGE * grid) ** 2}{VISION_END}"
    labelled = "".join(f" {label}{picture}" for label in LABELS[:images])
    return list(tokenizer(f"{START}user{labelled}").input_ids)


def segment_ids(tokenizer: PreTrainedTokenizerBase, question: str, answer: str) -> tuple[list[int], list[int]]:
    """Token ids and labels of the rest of the prompt and its answer; only answer tokens have labels."""
    asked = list(tokenizer(f"{question}{END}{START}assistant").input_ids)
    answered = list(tokenizer(f"{answer}{END}").input_ids)
    return asked + answered, [IGNORE] * len(asked) + answered


def _make_group(
    tokenizer: PreTrainedTokenizerBase,
    samples: list[list[Scene]],
    kinds: tuple[str, ...],
    rng: np.random.Generator,
) -> Group:
    rows = []
    for scenes in samples:
        for kind in kinds:
            item = make_question(kind, scenes, rng)
            rows.append(segment_ids(tokenizer, item.question, item.answer))
    length = max(len(ids) for ids, _ in rows)
    shape = (len(samples), len(kinds), length)
    ids = torch.full(shape, int(tokenizer.pad_token_id or 0)).view(-1, length)
    labels = torch.full(shape, IGNORE).view(-1, length)
    for index, (row_ids, row_labels) in enumerate(rows):
        ids[index, : len(row_ids)] = torch.tensor(row_ids)
        labels[index, : len(row_labels)] = torch.tensor(row_labels)
    return Group(ids.view(shape), labels.view(shape))


def make_batch(
    tokenizer: PreTrainedTokenizerBase,
    rng: np.random.Generator,
    samples: int,
    images: int,
    grid: int,
    describe: bool = True,
    text: bool = True,
) -> Batch:
    """Draw a packed batch; `describe` adds one description per sample, `text=False` leaves out all text."""
    scenes = [[random_scene(rng, grid) for _ in range(images)] for _ in range(samples)]
    flat = [scene for sample in scenes for scene in sample]
    pixels = patchify(np.stack([render(scene, rng) for scene in flat]))
    objects = torch.from_numpy(np.stack([scene.objects for scene in flat]))
    groups: list[Group] = []
    if text:
        kinds = (SHORT_KINDS, MEDIUM_KINDS, LONG_KINDS) if describe else (SHORT_KINDS, MEDIUM_KINDS)
        groups = [_make_group(tokenizer, scenes, group, rng) for group in kinds]
    return Batch(pixels, objects, images, grid, groups)
