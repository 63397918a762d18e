"""Requests as lmms-eval hands them to chat and simple models."""

from __future__ import annotations

from typing import Any

from lmms_eval.api.instance import GenerationResult, Instance

TASK, SPLIT = "some_task", "test"


def content(*parts: Any) -> list[dict[str, Any]]:
    """One user message: text (str), video (path as ``Path``-free dict) or image (anything else), in the order given."""
    made = []
    for part in parts:
        if isinstance(part, str):
            made.append({"type": "text", "text": part})
        elif isinstance(part, dict):
            made.append(part)
        else:
            made.append({"type": "image", "url": part})
    return [{"role": "user", "content": made}]


def video(path: Any, **keys: Any) -> dict[str, Any]:
    """A video part."""
    return {"type": "video", "url": path, **keys}


def chat_request(doc_id: int, messages: list[dict[str, Any]], metadata: Any = None, **generation: Any) -> Instance:
    """One chat request; its context is the text of its messages."""
    context = "".join(part.get("text", "") for message in messages for part in message["content"])
    arguments = (context, lambda _: messages, {"max_new_tokens": 8, **generation}, doc_id, TASK, SPLIT)
    return _instance(arguments, doc_id, metadata)


def simple_request(doc_id: int, messages: list[dict[str, Any]], **generation: Any) -> Instance:
    """The same document as a request to a simple (not chat) model."""
    parts = [part for message in messages for part in message["content"]]
    visuals = [part["url"] for part in parts if part["type"] != "text"]
    context = "".join(part.get("text", "") for part in parts)
    arguments = (context, {"max_new_tokens": 8, **generation}, lambda _: visuals, doc_id, TASK, SPLIT)
    return _instance(arguments, doc_id)


def run(model: Any, requests: list[Instance]) -> list[GenerationResult]:
    """Let a model answer requests, with the documents that lmms-eval would have given it."""
    model.task_dict = {TASK: {SPLIT: list(range(1 + max(request.args[3] for request in requests)))}}
    return model.generate_until(requests)


def _instance(arguments: tuple[Any, ...], doc_id: int, metadata: Any = None) -> Instance:
    own = {"task": TASK, "doc_id": doc_id, "repeats": 1, **(metadata or {})}
    return Instance("generate_until", arguments, 0, own)
