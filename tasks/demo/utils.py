"""The demo tasks for lmms-eval: documents from seeds, images drawn when a model asks for them."""

from __future__ import annotations

from typing import Any

from datasets import Dataset, DatasetDict
from lmms_eval.api.task import ConfigurableMessagesTask
from PIL import Image

from kvcomp_eval.demo import heldout, metrics
from kvcomp_eval.tasks.fidelity import FidelityTask

DOCUMENTS = 200


class DemoTask(ConfigurableMessagesTask):
    """A task whose test split is made in memory; `metadata.demo_task` in the YAML names the kind."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config={key: value for key, value in config.items() if key != "class"})

    def download(self, dataset_kwargs: dict[str, Any] | None = None) -> None:
        """Make the held-out documents; nothing is read from disk or network."""
        name = self.config.metadata["demo_task"]
        test = Dataset.from_list([heldout.document(name, index) for index in range(DOCUMENTS)])
        self.dataset = DatasetDict({"test": test})
        self.dataset_no_image = self.dataset


class DemoFidelity(FidelityTask, DemoTask):
    """Demo, scored against the uncompressed model's answers."""


def doc_to_visual(doc: dict[str, Any]) -> list[Image.Image]:
    """Return the document's images in order."""
    return [Image.fromarray(image) for image in heldout.render_images(doc)]


def doc_to_text(doc: dict[str, Any], lmms_eval_specific_kwargs: dict[str, Any] | None = None) -> str:
    """Return the question."""
    return str(doc["question"])


def doc_to_messages(
    doc: dict[str, Any], lmms_eval_specific_kwargs: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return one user turn: each image behind its label, then the question."""
    images = [{"type": "image", "url": image} for image in doc_to_visual(doc)]
    content = heldout.labelled(images, doc["question"], lambda text: {"type": "text", "text": text})
    return [{"role": "user", "content": content}]


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Score one answer; per-kind metrics are present only for documents of that kind."""
    return metrics.score(doc, results[0])
