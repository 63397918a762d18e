"""Questions to the judge for Video-ChatGPT's five dimensions (Maaz et al. 2023, https://arxiv.org/abs/2306.05424).

Scores depend on the wording, so the questions are those of lmms-eval, read off its own functions.
"""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache
from json import dumps, loads
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from huggingface_hub.constants import HF_HOME

#: Dimension -> its short name in papers. Average them for the figure that papers call "Avg".
DIMENSIONS = {
    "correctness": "CI",
    "detailed_orientation": "DO",
    "context": "CU",
    "temporal": "TU",
    "consistency": "CO",
}


def judge_messages(dimension: str, question: str, answer: str, prediction: str) -> list[dict[str, str]]:
    """Question about one answer; every dimension but "consistency".

    Parameters
    ----------
    dimension : str
        "correctness", "detailed_orientation", "context" or "temporal".
    question, answer, prediction : str
        What was asked, the reference, and what the model said.
    """
    if dimension not in DIMENSIONS or dimension == "consistency":
        singles = [name for name in DIMENSIONS if name != "consistency"]
        raise ValueError(f"Unknown dimension {dimension!r}; choose from {', '.join(singles)}.")
    return _recorded("get_eval_generic", question, answer, prediction, dimension)


def consistency_messages(questions: tuple[str, str], answer: str, predictions: tuple[str, str]) -> list[dict[str, str]]:
    """Question about the answers to two wordings of one question."""
    return _recorded("get_eval_consistency", *questions, answer, *predictions)


def _recorded(function: str, *texts: str) -> list[dict[str, str]]:
    """Messages that a function of lmms-eval would send."""
    reply, _ = getattr(_stock_module(), function)(*texts, 64)
    messages: list[dict[str, str]] = loads(reply)
    return messages


def _echo(*_: Any, json: dict[str, Any], **__: Any) -> Any:
    """Stands in for ``requests.post``: the judge's reply is the question itself."""
    choices = [{"message": {"content": dumps(json["messages"])}}]
    return SimpleNamespace(raise_for_status=lambda: None, json=lambda: {"choices": choices, "model": ""})


@lru_cache(maxsize=1)
def _stock_module() -> Any:
    """A private copy of lmms-eval's module that sends nothing."""
    package = importlib.util.find_spec("lmms_eval")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "tasks" / "videochatgpt" / "utils.py"
    spec = importlib.util.spec_from_file_location("kvcomp_eval_stock_videochatgpt", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    # The module demands the variable on import; this is the value that everybody else assumes.
    os.environ.setdefault("HF_HOME", HF_HOME)
    spec.loader.exec_module(module)
    module.requests = SimpleNamespace(post=_echo, exceptions=module.requests.exceptions)
    return module
