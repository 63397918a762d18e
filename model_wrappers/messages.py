"""Chat messages of a document: as lmms-eval's task gives them, with the few edits that wrappers make."""

from __future__ import annotations

import re
from typing import Any

from lmms_eval.api.instance import Instance
from lmms_eval.protocol import ChatMessage, ChatMessages, ChatTextContent, ChatVideoContent

PLACEHOLDER = re.compile(r"<image (\d+)>")


def conversation(request: Instance, task_dict: Any) -> ChatMessages:
    """The conversation of a request, from the documents that lmms-eval gave the model."""
    _, doc_to_messages, _, doc_id, task, split = request.args
    return chat_messages(doc_to_messages(task_dict[task][split][doc_id]))


def chat_messages(messages: list[dict[str, Any]]) -> ChatMessages:
    """Validate a task's messages; videos given as a dict with a time range become a path with that range."""
    chat = ChatMessages(messages=messages)
    for message in chat.messages:
        for index, part in enumerate(message.content):
            if part.type == "audio":
                raise ValueError("The document has audio; these models read text, images and video only.")
            if part.type == "video" and isinstance(part.url, dict):
                message.content[index] = _ranged_video(part.url)
    return chat


def with_system_prompt(chat: ChatMessages, prompt: str | None) -> ChatMessages:
    """Put a system message first, unless the document brings its own."""
    if not prompt or (chat.messages and chat.messages[0].role == "system"):
        return chat
    return ChatMessages(messages=[ChatMessage(role="system", content=[ChatTextContent(text=prompt)]), *chat.messages])


def with_reasoning_prompt(chat: ChatMessages, prompt: str | None) -> ChatMessages:
    """Append a prompt (``\\n`` written as two characters is a line break) to the last text of the last user message."""
    if not prompt:
        return chat
    users = [message for message in chat.messages if message.role == "user"]
    texts = [part for part in users[-1].content if part.type == "text"] if users else []
    if not texts:
        raise ValueError("reasoning_prompt needs a user message with text, and the document has none.")
    texts[-1].text = texts[-1].text.strip() + prompt.replace("\\n", "\n")
    return chat


def with_interleaved_visuals(chat: ChatMessages) -> ChatMessages:
    """Move each visual to its ``<image 1>``, ``<image 2>``, ... in the text; visuals without one stay in front."""
    for message in chat.messages:
        visuals = [part for part in message.content if part.type != "text"]
        parts: list[Any] = []
        used: set[int] = set()
        for part in message.content:
            if part.type != "text":
                continue
            pieces = PLACEHOLDER.split(part.text)  # text, number, text, number, ..., text
            for text, number in zip(pieces[::2], [*pieces[1::2], None], strict=True):
                if text:
                    parts.append(ChatTextContent(text=text))
                if number is not None:
                    parts.append(visuals[_visual_index(number, len(visuals))])
                    used.add(int(number) - 1)
        message.content = [part for index, part in enumerate(visuals) if index not in used] + parts
    return chat


def _visual_index(number: str, count: int) -> int:
    index = int(number) - 1
    if not 0 <= index < count:
        raise ValueError(f"The prompt names <image {number}>, but the document has {count} images.")
    return index


def _ranged_video(video: dict[str, Any]) -> ChatVideoContent:
    path = video.get("url") or video.get("path") or video.get("video")
    return ChatVideoContent(url=path, start_time=video.get("video_start"), end_time=video.get("video_end"))
