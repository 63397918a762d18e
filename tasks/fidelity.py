"""The ``*_fidelity`` tasks: a benchmark's documents and prompts, answers compared with the uncompressed model's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from datasets import DatasetDict
from lmms_eval.api.metrics import mean
from lmms_eval.api.task import ConfigurableMessagesTask

from kvcomp_eval.metrics.fidelity import free_running
from kvcomp_eval.metrics.pairs import NO_REFERENCE, ComparedDocuments

#: Column with the id by which lmms-eval and the wrappers know a document; scoring is handed the document alone.
DOC_ID = "fidelity_doc_id"


def mean_of_present(items: Sequence[float | None]) -> float | None:
    """Mean of the documents that have a value; None if none has."""
    present = [item for item in items if item is not None and not math.isnan(item)]
    return mean(present) if present else None


#: Measure of :class:`~kvcomp_eval.metrics.fidelity.FreeRunning` -> how documents are put together. Answers that never
#: diverge have no first divergent token, and an empty reference gives no ratio of lengths.
MEASURES = {
    "rouge_l": mean,
    "rouge_l_coco": mean,
    "exact_match": mean,
    "agreed_share": mean,
    "first_divergent_token": mean_of_present,
    "length_ratio": mean_of_present,
}


class FidelityTask(ConfigurableMessagesTask):
    """Named before a task's class, it takes the place of that task's scores.

    The wrapper leaves the uncompressed answers; see its argument ``reference`` and :mod:`kvcomp_eval.metrics.pairs`.
    """

    dataset: ComparedDocuments
    dataset_no_image: DatasetDict

    def download(self, dataset_kwargs: dict[str, Any] | None = None) -> None:
        super().download(dataset_kwargs)
        self.dataset = ComparedDocuments(_numbered(self.dataset))
        self.dataset_no_image = _numbered(self.dataset_no_image)

    def unavailable(self) -> dict[str, str]:
        """Nothing: what the task's own scores lack does not matter."""
        return {}

    def process_results(self, doc: dict[str, Any], results: list[Any], full_docs: Any = None) -> dict[str, Any]:
        """Compare the answer with the uncompressed one."""
        if "bypass" in self.aggregation():  # --predict_only
            return super().process_results(doc, results)
        pair = self.dataset.pairs.get(doc[DOC_ID])
        if pair is None:
            raise ValueError(
                f"Document {doc[DOC_ID]}: task {self.config.task} {NO_REFERENCE} "
                "Answers that lmms-eval takes from its --use_cache cannot be compared."
            )
        return free_running(*pair).to_dict()

    def _prepare_metric_and_aggregation(self) -> None:
        self._aggregation_list = dict(MEASURES)
        self._metric_fn_list: dict[str, Any] = dict.fromkeys(MEASURES)
        self._metric_fn_kwargs: dict[str, Any] = {measure: {} for measure in MEASURES}
        # A length ratio is best at 1.
        self._higher_is_better = {**dict.fromkeys(MEASURES, True), "length_ratio": None}


def _numbered(splits: DatasetDict) -> DatasetDict:
    return DatasetDict({name: rows.add_column(DOC_ID, list(range(len(rows)))) for name, rows in splits.items()})
