"""A task's ``generation_kwargs`` as arguments of ``model.generate``, and its ``until`` as a cut of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loguru import logger
from transformers import GenerationConfig

_UNUSED_SEEN: set[str] = set()


def generate_arguments(given: Mapping[str, Any], max_new_tokens: int, explicit_none: Iterable[str]) -> dict[str, Any]:
    """Complete a task's generation arguments as lmms-eval's wrappers do.

    Decoding is greedy unless ``temperature`` > 0 (and ``do_sample`` is not false). All settings that transformers
    knows are passed on; a name that it does not know (such as ``image_aspect_ratio``, which some tasks carry for other
    models) is reported once and left out.

    Parameters
    ----------
    given : mapping
        ``generation_kwargs`` of the task, ``until`` included.
    max_new_tokens : int
        Default.
    explicit_none : iterable of str
        Sampling settings that are passed as None when not given, which turns off the checkpoint's own.
    """
    known = GenerationConfig().to_dict().keys() | {"temperature", "top_p", "top_k"}
    _report_unused([name for name in given if name not in known and name != "until"])
    settings = {name: value for name, value in given.items() if name in known and value is not None}
    if settings.get("num_return_sequences", 1) != 1:
        raise ValueError("num_return_sequences must be 1: lmms-eval takes one answer per request; use --repeats.")
    settings = {"max_new_tokens": max_new_tokens, "num_beams": 1, **settings}
    sample = settings.get("temperature", 0) > 0 and settings.get("do_sample", True) is True
    settings["do_sample"] = sample
    if not sample:
        settings |= dict.fromkeys(("temperature", "top_p", "top_k"))
    return {**dict.fromkeys(explicit_none), **settings}


def stop_strings(given: Mapping[str, Any], ignored: Sequence[str]) -> list[str]:
    """Return the strings of ``until`` at which an answer ends."""
    until = given.get("until") or []
    if not isinstance(until, (str, list, tuple)):
        raise TypeError(f"until={until!r} must be a string or a list of strings.")
    strings = [until] if isinstance(until, str) else list(until)
    return [text for text in strings if text and text not in ignored]


def cut(answer: str, stops: Iterable[str]) -> str:
    """End an answer before the first of the stop strings."""
    for stop in stops:
        answer = answer.split(stop, 1)[0]
    return answer


def _report_unused(names: Iterable[str]) -> None:
    for name in names:
        if name not in _UNUSED_SEEN:
            _UNUSED_SEEN.add(name)
            logger.warning(f"Generation argument {name!r} of the task is not one of transformers' and is not used.")
