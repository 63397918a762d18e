"""Fixtures: tiny models of all five families, built once per test run."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest
import torch
from PIL import Image

from tests.families import FAMILIES, IMAGE_SIZES, build, prompt_inputs

torch.set_num_threads(1)

#: Questions of different lengths for the rows of a padded batch.
TEXTS = ("hello there", "what is this thing, and where does it stand?", "x")


@pytest.fixture(scope="session")
def images():
    generator = np.random.default_rng(0)
    return [
        Image.fromarray(generator.integers(0, 255, (height, width, 3), dtype=np.uint8)) for width, height in IMAGE_SIZES
    ]


@pytest.fixture(scope="session")
def families():
    return {name: build(name) for name in FAMILIES}


@pytest.fixture(params=FAMILIES)
def family(request, families):
    model, processor = families[request.param]
    return request.param, model, processor


@pytest.fixture
def make_inputs(family, images):
    """Inputs of the chosen rows (image and text) as one left-padded batch."""
    name, _, processor = family

    def make(*rows: int):
        return prompt_inputs(name, processor, [[images[row]] for row in rows], [TEXTS[row] for row in rows])

    return make
