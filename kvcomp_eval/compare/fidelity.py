"""How faithful a row's answers are to the uncompressed model's, document by document and measure by measure."""

from __future__ import annotations

import math
from collections.abc import Hashable
from statistics import fmean

from kvcomp_eval.compare.results import RowTask
from kvcomp_eval.compare.significance import Measure, Values
from kvcomp_eval.metrics.fidelity import free_running

#: ROUGE-L F1 to the uncompressed answer, and the share of equal answers.
FIDELITY, SAME = "fidelity", "same answer"
COCO, AGREED, DIVERGENT, LENGTH = "COCO ROUGE-L", "agreed share", "first divergent token", "length ratio"
KL, TOP1, NLL = "forced KL", "forced top-1", "forced NLL difference"

#: Measure -> figure of :class:`~kvcomp_eval.metrics.fidelity.FreeRunning`.
FREE_RUNNING = {
    FIDELITY: "rouge_l",
    SAME: "exact_match",
    COCO: "rouge_l_coco",
    AGREED: "agreed_share",
    DIVERGENT: "first_divergent_token",
    LENGTH: "length_ratio",
}
#: Measure -> figure of :class:`~kvcomp_eval.metrics.fidelity.TeacherForced`.
TEACHER_FORCED = {KL: "kl", TOP1: "top1_agreement", NLL: "nll_difference"}


def fidelity_values(cell: RowTask) -> dict[str, Values]:
    """Measure -> document -> value, mean over seeds.

    Documents without a value are left out: equal answers have no first divergent token, and teacher-forced figures
    are those of the first documents only.
    """
    found: dict[str, dict[Hashable, list[float]]] = {name: {} for name in (*FREE_RUNNING, *TEACHER_FORCED)}
    for document, ours, theirs in cell.answers():
        figures = free_running(ours["answer"], theirs["answer"], ours["tokens"], theirs["tokens"]).to_dict()
        for name, figure in FREE_RUNNING.items():
            value = figures[figure]
            if value is not None and not math.isnan(value):
                found[name].setdefault((cell.task, document), []).append(value)
    for record in cell.records:
        for key, line in sorted(record.forced.items()):
            for name, figure in TEACHER_FORCED.items():
                found[name].setdefault(key, []).append(line[figure])
    return {name: {key: fmean(values) for key, values in entries.items()} for name, entries in found.items()}


def fidelity_measures(values: list[dict[str, Values]], tested: tuple[str, ...]) -> list[Measure]:
    """All measures of rows, given :func:`fidelity_values` of each; rows are tested against each other by some."""
    return [
        Measure(name, [found[name] for found in values], is_tested=name in tested, is_over_shared=name != DIVERGENT)
        for name in (*FREE_RUNNING, *TEACHER_FORCED)
    ]
