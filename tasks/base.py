"""What the benchmark tasks share: documents from :mod:`kvcomp_eval.data`, scores from :mod:`kvcomp_eval.metrics`.

Each is a Python task class, named by ``class:`` in its YAMLs. Its four methods say all that lmms-eval needs to know:
``documents``, ``content``, ``score`` and, where a score is not a mean, ``aggregate``.
"""

from __future__ import annotations

import functools
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any, ClassVar

from datasets import Dataset, DatasetDict
from lmms_eval.api.metrics import mean
from lmms_eval.api.task import ConfigurableMessagesTask
from loguru import logger
from PIL import Image, ImageFile

from kvcomp_eval.metrics.result import NotComputed

#: Part of a prompt as lmms-eval's chat messages have it: text, or an image or video under ``url``.
Part = dict[str, Any]


def text(words: str) -> Part:
    """A part of a prompt that is text."""
    return {"type": "text", "text": words}


class BenchmarkTask(ConfigurableMessagesTask):
    """A task whose data this package finds and whose prompts keep the order of text, images and videos.

    Class Attributes
    ----------------
    metrics : tuple of str
        Keys of what :meth:`score` returns whose result is the mean.
    set_metrics : tuple of str
        Keys whose result :meth:`aggregate` makes of all documents.
    lower_is_better : tuple of str
        Those of the keys where less is better.
    media_columns : tuple of str
        Columns that lmms-eval is not handed when it only needs text.
    """

    metrics: tuple[str, ...] = ()
    set_metrics: tuple[str, ...] = ()
    lower_is_better: ClassVar[tuple[str, ...]] = ()
    media_columns: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config={key: value for key, value in config.items() if key != "class"})

    @abstractmethod
    def documents(self, **dataset_kwargs: Any) -> Dataset:
        """Find, check and read the documents; the arguments are the YAML's ``dataset_kwargs``."""

    @abstractmethod
    def content(self, doc: dict[str, Any]) -> list[Part]:
        """The user's message, with images and videos not yet loaded."""

    @abstractmethod
    def score(self, doc: dict[str, Any], answer: str) -> dict[str, Any]:
        """Score one answer: a number per metric, or what :meth:`aggregate` needs of it."""

    @abstractmethod
    def doc_to_target(self, doc: dict[str, Any]) -> str:
        """The reference answer, for logs."""

    def aggregate(self, metric: str, items: Sequence[Any]) -> Any:
        """Turn what :meth:`score` returned for all documents into the result of one of the ``set_metrics``."""
        raise NotImplementedError(f"{type(self).__name__} has no aggregation for {metric}.")

    def unavailable(self) -> dict[str, str]:
        """Metrics that cannot be computed here, with the reason; they are announced before anything is generated."""
        return {}

    def download(self, dataset_kwargs: dict[str, Any] | None = None) -> None:
        """Make the test split (called by lmms-eval's constructor)."""
        documents = self.documents(**(dataset_kwargs or {}))
        media = [column for column in self.media_columns if column in documents.column_names]
        self.dataset = DatasetDict({"test": documents})
        self.dataset_no_image = DatasetDict({"test": documents.remove_columns(media)})
        self._prepare_metric_and_aggregation()  # again: which metrics there are may depend on the documents
        unavailable = self.unavailable()
        for reason in dict.fromkeys(unavailable.values()):
            names = ", ".join(metric for metric, why in unavailable.items() if why == reason)
            logger.warning(f"{self.config.task}: {names} will not be computed: {reason}.")

    def doc_to_text(self, doc: dict[str, Any]) -> str:
        """The prompt's text, with ``<image>`` and ``<video>`` where they stand."""
        parts = self.content(doc)
        return "".join(part["text"] if part["type"] == "text" else f"<{part['type']}>" for part in parts)

    def doc_to_messages(self, doc: dict[str, Any], **_: Any) -> list[dict[str, Any]]:
        """The prompt as one user turn, images loaded."""
        parts = self.content(doc)
        loaded = [{**part, "url": load_image(part["url"])} if part["type"] == "image" else part for part in parts]
        return [{"role": "user", "content": loaded}]

    def doc_to_visual(self, doc: dict[str, Any]) -> list[Any]:
        """Images (loaded) and videos (paths) in order."""
        (turn,) = self.doc_to_messages(doc)
        return [part["url"] for part in turn["content"] if part["type"] != "text"]

    def process_results(self, doc: dict[str, Any], results: list[Any], full_docs: Any = None) -> dict[str, Any]:
        """Score the answer to one document (lmms-eval's own method would repeat a failing one five times)."""
        if "bypass" in self.aggregation():  # --predict_only
            return super().process_results(doc, results)
        return self.score(doc, str(results[0] or "").strip())

    def _prepare_metric_and_aggregation(self) -> None:
        """Declare the metrics of the class, where lmms-eval would read a ``metric_list``."""
        whole = {metric: functools.partial(self.aggregate, metric) for metric in self.set_metrics}
        self._aggregation_list = {**dict.fromkeys(self.metrics, mean), **whole}
        self._metric_fn_list = dict.fromkeys(self._aggregation_list)
        self._metric_fn_kwargs: dict[str, Any] = {metric: {} for metric in self._aggregation_list}
        self._higher_is_better = {metric: metric not in self.lower_is_better for metric in self._aggregation_list}


def not_computed(missing: NotComputed) -> str:
    """What stands in the table of results; remedies would make it too wide, and were told before the run."""
    return re.split(r"[;.] ", str(missing), maxsplit=1)[0]


def load_image(source: Any) -> Image.Image:
    """Open an image as RGB.

    Parameters
    ----------
    source : str or dict
        A path, or ``{"bytes": ..., "path": ...}`` as a data set column holds it undecoded.
    """
    name, file = source, source
    if isinstance(source, dict):
        name, held = source.get("path") or "in the data set", source.get("bytes")
        file = BytesIO(held) if held else source["path"]
    try:
        with _whole_images(), Image.open(file) as image:
            return image.convert("RGB")
    except OSError as error:  # PIL's UnidentifiedImageError is one
        raise ValueError(f"Image {name} cannot be read ({error}); fetch it again.") from error


@contextmanager
def _whole_images() -> Iterator[None]:
    """Refuse truncated images; lmms-eval tells PIL to show what is left of them, and the rest grey."""
    lenient = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = lenient
