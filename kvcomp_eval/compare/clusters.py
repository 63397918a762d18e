"""Which documents are about the same images or videos: their answers are no independent samples."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy.cluster.hierarchy import DisjointSet

from kvcomp_eval.metrics.references import document_hash

if TYPE_CHECKING:
    from lmms_eval.protocol import ChatMessages

    from kvcomp_eval.compare.record import AnswerKey, CellRecord


def visuals_of(chat: ChatMessages) -> list[str]:
    """Checksums of a conversation's images (decoded pixels) and videos (name and size of the file), sorted.

    Two time ranges of one video have one checksum.
    """
    parts = [part for message in chat.messages for part in message.content if part.type != "text"]
    return sorted({document_hash(_content(part.url)) for part in parts})


def _content(source: Any) -> Any:
    """What identifies an image or video; not the folder of a file, which differs between machines."""
    if isinstance(source, str) and (file := Path(source)).is_file():
        return [file.name, file.stat().st_size]
    return source


def document_clusters(records: Iterable[CellRecord]) -> dict[Hashable, Hashable]:
    """Task and document -> its cluster: documents that share an image or video, directly or through others, are in one.

    Documents without images, and those of journals that did not record them, are on their own.
    """
    visuals: dict[AnswerKey, list[str]] = {}
    for record in records:
        for key, line in record.answers.items():
            visuals[key] = visuals.get(key) or line.get("visuals", [])
    sets = DisjointSet(visuals)
    for key, found in visuals.items():
        for visual in found:
            sets.add(visual)
            sets.merge(key, visual)
    return {key: sets[key] for key in visuals}
