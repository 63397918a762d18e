"""Answers of the uncompressed model, made once and kept; never mixed with those of other settings.

A store is one file of JSON lines for one model, task and generation setting. Its first line is the
:class:`Fingerprint`; every further line is the answer to one document. Lines are only ever appended.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from kvcomp_eval.jsonl import recovered_lines
from kvcomp_eval.versions import installed_versions

#: Packages whose version may change an answer.
PACKAGES = ("kvcomp-eval", "transformers", "torch", "lmms-eval")


class ReferenceMismatch(ValueError):
    """Stored answers were made under other settings, or for another document."""


def package_versions() -> dict[str, str]:
    """Installed versions of :data:`PACKAGES`."""
    return installed_versions(PACKAGES)


@dataclass(frozen=True)
class Fingerprint:
    """All that an uncompressed answer depends on, but for its document.

    Parameters
    ----------
    model, revision, dtype, task : str
    processor : mapping
        Limits on pixels, frames and the like.
    generation : mapping
        Arguments of ``generate``.
    versions : mapping
        See :func:`package_versions`.
    """

    model: str
    revision: str
    dtype: str
    task: str
    processor: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=package_versions)

    def to_dict(self) -> dict[str, Any]:
        """As read back from JSON, so that a tuple equals the list it is stored as."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), sort_keys=True, default=str))
        return plain

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def file_name(self) -> str:
        """Name of this setting's store in a folder of stores."""
        return f"{self.task}-{self.digest}.jsonl"


@dataclass(frozen=True)
class Reference:
    """The uncompressed answer to one document.

    Parameters
    ----------
    doc_id : str
    document : str
        :func:`document_hash` of the document.
    answer : str
    tokens : tuple of int
        Its tokens, the end token included.
    """

    doc_id: str
    document: str
    answer: str
    tokens: tuple[int, ...]


def document_hash(document: Any) -> str:
    """Digest of what the model was asked: texts, numbers, lists, dictionaries, pictures and arrays."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=_digest).encode()).hexdigest()[:16]


def _digest(item: Any) -> str:
    """Digest of what JSON cannot hold: bytes, or the bytes and shape of a PIL picture or an array."""
    content = item.tobytes() if hasattr(item, "tobytes") else bytes(memoryview(item))
    shape = getattr(item, "shape", None) or (getattr(item, "size", None), getattr(item, "mode", None))
    return hashlib.sha256(content + repr(shape).encode()).hexdigest()


class ReferenceStore:
    """Open the store of a fingerprint, or begin it.

    Processes may share a file: every line is appended under a lock.

    Parameters
    ----------
    path : path
        A file, or a folder in which the file of this fingerprint is chosen.
    fingerprint : Fingerprint

    Raises
    ------
    ReferenceMismatch
        The file holds answers made under other settings.
    """

    def __init__(self, path: str | Path, fingerprint: Fingerprint) -> None:
        path = Path(path)
        self.path = path if path.suffix else path / fingerprint.file_name()
        self.fingerprint = fingerprint
        self._references: dict[str, Reference] = {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(f"{self.path}.lock")
        with self._lock:
            lines = recovered_lines(self.path)
            if not lines:
                self._append({"fingerprint": fingerprint.to_dict()})
        self._check_fingerprint(lines)
        for number, line in enumerate(lines[1:], start=2):
            self._remember(self._parse(line, number))

    def __len__(self) -> int:
        return len(self._references)

    def __contains__(self, doc_id: object) -> bool:
        return str(doc_id) in self._references

    def get(self, doc_id: object, document: str) -> Reference | None:
        """The answer to a document, None if there is none yet.

        Raises
        ------
        ReferenceMismatch
            The stored answer is to another document of that id.
        """
        found = self._references.get(str(doc_id))
        if found is not None and found.document != document:
            raise ReferenceMismatch(
                f"{self.path}: document {doc_id} of task {self.fingerprint.task} is not the one that was answered "
                f"({document}, stored {found.document}); the data changed: use another reference file."
            )
        return found

    def add(self, doc_id: object, document: str, answer: str, tokens: list[int] | tuple[int, ...]) -> Reference:
        """Append an answer; one that is there already must be the same."""
        reference = Reference(str(doc_id), document, answer, tuple(map(int, tokens)))
        if self.get(doc_id, document) is None:
            with self._lock:
                self._append(asdict(reference))
        return self._remember(reference)

    def _remember(self, reference: Reference) -> Reference:
        known = self._references.setdefault(reference.doc_id, reference)
        if known != reference:
            raise ReferenceMismatch(
                f"{self.path}: two different answers to document {reference.doc_id} of task {self.fingerprint.task}; "
                "the model does not repeat itself, so there is no reference: check dtype, device and batch size."
            )
        return known

    def _check_fingerprint(self, lines: list[str]) -> None:
        expected = self.fingerprint.to_dict()
        stored = expected if not lines else _fingerprint_of(lines[0], self.path)
        differing = [name for name in expected if stored.get(name) != expected[name]]
        if differing:
            shown = "; ".join(f"{name}: stored {stored.get(name)!r}, now {expected[name]!r}" for name in differing)
            raise ReferenceMismatch(
                f"{self.path} holds answers made under other settings ({shown}); "
                "use another file, or make the settings equal."
            )

    def _parse(self, line: str, number: int) -> Reference:
        try:
            row = json.loads(line)
            return Reference(row["doc_id"], row["document"], row["answer"], tuple(row["tokens"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path}, line {number} is not an answer ({error}); delete that line, and the document is "
                "answered again."
            ) from error

    def _append(self, row: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _fingerprint_of(line: str, path: Path) -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads(line)["fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise ReferenceMismatch(f"{path} is not a reference store: its first line has no fingerprint.") from error
    return stored
