"""The argument ``reference``: where the uncompressed answers to a run's requests are kept, and what they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import huggingface_hub.constants
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.protocol import ChatMessages
from tqdm import tqdm

from kvcomp_eval.methods.registry import make_method
from kvcomp_eval.metrics.pairs import NO_REFERENCE, ComparedDocuments, Pair
from kvcomp_eval.metrics.references import Fingerprint, Reference, ReferenceStore, document_hash
from kvcomp_eval.model_wrappers.arguments import AUTO, OFF, ONLY
from kvcomp_eval.model_wrappers.generation import stop_strings
from kvcomp_eval.model_wrappers.messages import conversation
from kvcomp_eval.session import attach

#: Arguments that say where something is or goes, and do not change an answer; the weights are told by their values.
NEUTRAL = {"pretrained", "revision", "dtype", "device", "device_map", "batch_size", "report_path", "reference"}
#: Values of each tensor that :func:`weights_digest` reads.
SAMPLES = 16


class References:
    """Uncompressed answers to the requests of a wrapper, read from their stores or made.

    In the user's cache every setting has a file of its own. In a folder that the user names every task has one, and
    answers made under other settings are refused.

    Parameters
    ----------
    wrapper : ChatWrapper
        Whose model, arguments and conversations they are made with.
    """

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self._where: str = wrapper.arguments.reference
        self._stores: dict[str, ReferenceStore] = {}
        self._documents: dict[Any, str] = {}

    def complete(self, batches: Sequence[list[Instance]]) -> None:
        """Answer with nothing dropped what the stores lack."""
        if self._where == OFF:
            self._refuse_comparison(batches)
            return
        missing = []
        for batch in batches:
            with named(batch):
                missing.append([request for request in batch if self._find(request) is None])
        if any(missing):
            self._make([batch for batch in missing if batch])

    def answer(self, request: Instance) -> GenerationResult:
        """The uncompressed answer, as the answer of this run."""
        reference = self._find(request)
        assert reference is not None, "complete() has made it"
        self.compare(request, reference.answer, reference.tokens)
        return GenerationResult(reference.answer, TokenCounts(output_tokens=len(reference.tokens)))

    def compare(self, request: Instance, answer: str, tokens: Sequence[int]) -> None:
        """Leave an answer beside the uncompressed one if the request's task compares them."""
        documents = self._wrapper.task_dict[request.args[4]]
        if isinstance(documents, ComparedDocuments):
            reference = self._find(request)
            assert reference is not None, "complete() has made it"
            documents.pairs[request.args[3]] = Pair(answer, reference.answer, tokens, reference.tokens)

    def _make(self, batches: list[list[Instance]]) -> None:
        wrapper = self._wrapper
        with attach(wrapper.model, make_method("full"), prefill=wrapper.arguments.attn):
            for batch in tqdm(batches, disable=wrapper.rank != 0, desc="Uncompressed references"):
                with named(batch):
                    made = wrapper.generate(batch)
                    for request, text, row in zip(batch, made.texts, made.rows, strict=True):
                        self._store(request).add(request.args[3], self._document(request), text, row)

    def _refuse_comparison(self, batches: Sequence[list[Instance]]) -> None:
        for task in {request.args[4] for batch in batches for request in batch}:
            if isinstance(self._wrapper.task_dict[task], ComparedDocuments):
                raise ValueError(f"Task {task} {NO_REFERENCE}")

    def _find(self, request: Instance) -> Reference | None:
        return self._store(request).get(request.args[3], self._document(request))

    def _store(self, request: Instance) -> ReferenceStore:
        setting = self._fingerprint(request)
        if setting.digest not in self._stores:
            is_cached = self._where in (AUTO, ONLY)
            path = cache_folder() if is_cached else Path(self._where).expanduser() / f"{setting.task}.jsonl"
            self._stores[setting.digest] = ReferenceStore(path, setting)
        return self._stores[setting.digest]

    def _document(self, request: Instance) -> str:
        key = request.args[3:6]
        if key not in self._documents:
            self._documents[key] = document_hash(_asked(conversation(request, self._wrapper.task_dict)))
        return self._documents[key]

    def _fingerprint(self, request: Instance) -> Fingerprint:
        """All that the uncompressed answer to a request depends on, but for its document."""
        wrapper, task = self._wrapper, request.args[4]
        settings = wrapper.settings(request)
        if settings["do_sample"]:
            raise ValueError(
                f"Task {task} samples, so there is no one uncompressed answer to compare with; add "
                "--gen_kwargs do_sample=False, or drop reference= from --model_args."
            )
        return Fingerprint(
            model=wrapper.arguments.pretrained,
            revision=self._weights,
            dtype=str(wrapper.model.dtype),
            task=task,
            processor={name: value for name, value in asdict(wrapper.arguments).items() if name not in NEUTRAL},
            generation={**settings, "until": stop_strings(request.args[2], wrapper.ignored_stops)},
        )

    @cached_property
    def _weights(self) -> str:
        return weights_digest(self._wrapper.model)


@contextmanager
def named(batch: Sequence[Instance]) -> Iterator[None]:
    """Put task and document of each request of a batch in front of an error's message."""
    try:
        yield
    except Exception as error:
        names = "; ".join(f"task {request.args[4]}, doc {request.args[3]}" for request in batch)
        raise RuntimeError(f"{names}: {type(error).__name__}: {error}") from error


def cache_folder() -> Path:
    """Where ``auto`` and ``only`` keep references: beside the data that this package keeps in the user's cache."""
    return Path(huggingface_hub.constants.HF_HOME) / "kvcomp_eval" / "references"


def weights_digest(model: Any) -> str:
    """Digest of a few values of every parameter.

    A name or a folder does not tell which weights were loaded: both may be trained on, or moved.
    """
    digest = hashlib.sha256()
    for name, tensor in model.named_parameters():
        digest.update(name.encode())
        if not tensor.is_meta:  # on disk or waiting in host memory, with device_map=auto
            values = tensor.detach().reshape(-1)[:: max(1, tensor.numel() // SAMPLES)]
            digest.update(values.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _asked(chat: ChatMessages) -> list[Any]:
    """A conversation without the folders of its videos."""
    return [[message.role, [_part(part) for part in message.content]] for message in chat.messages]


def _part(part: Any) -> dict[str, Any]:
    plain: dict[str, Any] = part.model_dump()
    if part.type == "video" and isinstance(part.url, str) and (file := Path(part.url)).is_file():
        plain["url"] = [file.name, file.stat().st_size]
    return plain
