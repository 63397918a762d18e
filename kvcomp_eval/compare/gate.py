"""The regression gate: is each row at least as good as its baseline, within a margin?"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcomp_eval.compare.clusters import document_clusters
from kvcomp_eval.compare.config import ConfigError
from kvcomp_eval.compare.leaderboard import main_metric
from kvcomp_eval.compare.results import RowTask, Run, group_cells
from kvcomp_eval.compare.significance import Values
from kvcomp_eval.metrics.fidelity import fidelity_of
from kvcomp_eval.metrics.statistics import Clusters, paired_bootstrap

FORMAT = 1
#: What the gate compares, per row and task.
FIDELITY, MAIN = "fidelity", "main metric"
NOT_WORSE, WORSE, NOT_SHOWN, INVALID = "not worse", "worse", "not shown", "invalid"


@dataclass(frozen=True)
class Verdict:
    """One paired comparison.

    Parameters
    ----------
    row, task, measure : str
    difference, low, high : float
        Mean of ours minus the baseline's with its two-sided ``1 - 2 alpha`` interval; negative is worse.
    documents, changed : int
        How many were compared, and how many of them have another value.
    detectable : float
        True loss that this many documents would show with 80 % power; 0 if nothing changed.
    state : str
        ``not worse``: the interval lies above minus the margin. ``worse``: it lies below zero, at least in part below
        the margin. ``not shown``: it reaches below the margin, and above zero. ``invalid``: a guard is violated.
    reason : str
        The violated guards.
    """

    row: str
    task: str
    measure: str
    difference: float
    low: float
    high: float
    documents: int
    changed: int
    detectable: float
    state: str
    reason: str = ""

    @property
    def is_failure(self) -> bool:
        return self.state != NOT_WORSE

    def sentence(self) -> str:
        """The figures in words."""
        text = (
            f"{self.measure} {self.difference:+.4f} [{self.low:+.4f}, {self.high:+.4f}], "
            f"{self.changed} of {self.documents} documents changed"
        )
        return f"{text}; {self.reason}" if self.reason else text


def baseline_of(run: Run) -> dict[str, Any]:
    """What :func:`compare` needs of a run: every row's values by document, and the uncompressed answers."""
    rows: dict[str, Any] = {}
    for cell in group_cells(run):
        rows.setdefault(cell.row.name, {})[cell.task] = _values(cell)
    settings = {record.cell.task: record.settings for record in run.complete() if record.cell and record.settings}
    tasks = {task: {"task": found["task"], "limit": found["limit"]} for task, found in settings.items()}
    machine, config = run.machine, run.config.model_dump()
    return {"format": FORMAT, "config": config, "machine": machine, "tasks": tasks, "rows": rows}


def read_baseline(path: Path) -> dict[str, Any]:
    """Read what `kvcomp-eval baseline` wrote.

    Raises
    ------
    ConfigError
        The file is missing, damaged, or of another format.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"Baseline {path} cannot be read ({error}); write it: kvcomp-eval baseline CONFIG.") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ConfigError(f"{path} is no baseline of this version; write it anew: kvcomp-eval baseline CONFIG.")
    return found


def compare(baseline: dict[str, Any], run: Run, margin: float, alpha: float = 0.05, seed: int = 0) -> list[Verdict]:
    """Compare every row and task of a run with the baseline, document by document.

    Raises
    ------
    ConfigError
        A row, task or document of the baseline was not run, or a task's settings changed: nothing can be said.
    """
    ours = {(cell.row.name, cell.task): cell for cell in group_cells(run)}
    wanted = [(row, task) for row, tasks in baseline["rows"].items() for task in tasks]
    missing = [f"{row} on {task}" for row, task in wanted if (row, task) not in ours]
    if missing:
        raise ConfigError(f"The baseline holds {', '.join(missing)}, which this run lacks; run the same configuration.")
    _require_same_tasks(baseline, run)
    clusters = document_clusters(run.records.values())
    verdicts = []
    for row, task in wanted:
        cell = ours[row, task]
        found, expected = _values(cell), baseline["rows"][row][task]
        shared: Clusters = {key: clusters[task, int(key)] for key in found[FIDELITY]}
        for measure, sign in ((FIDELITY, 1), (MAIN, 1 if found["higher_is_better"] else -1)):
            pair = found[measure], expected[measure]
            verdicts.append(_verdict((row, task, measure), *pair, sign, cell, shared, margin, alpha, seed))
    return verdicts


def _verdict(
    place: tuple[str, str, str],
    found: Mapping[str, float],
    expected: Mapping[str, float],
    sign: int,
    cell: RowTask,
    clusters: Clusters,
    margin: float,
    alpha: float,
    seed: int,
) -> Verdict:
    """Non-inferiority by the two-sided ``1 - 2 alpha`` interval of the paired difference."""
    if found.keys() != expected.keys():
        raise ConfigError(f"{place[0]} on {place[1]} answered other documents than the baseline; use the same limit.")
    ours: Values = {key: sign * value for key, value in found.items()}
    theirs: Values = {key: sign * value for key, value in expected.items()}
    estimate = paired_bootstrap(ours, theirs, clusters, confidence=1 - 2 * alpha, seed=seed)
    low, high = estimate.percentile.low, estimate.percentile.high
    reason = "; ".join(cell.invalid)
    changed = sum(ours[key] != theirs[key] for key in ours)
    is_shown = estimate.num_clusters > 1 or not changed  # one image or video has no spread to judge by
    if reason:
        state = INVALID
    elif is_shown and low >= -margin:
        state = NOT_WORSE
    else:
        state = WORSE if is_shown and high < 0 else NOT_SHOWN
    effect = estimate.minimum_detectable_effect
    return Verdict(*place, estimate.mean, low, high, len(ours), changed, effect, state, reason)


def _values(cell: RowTask) -> dict[str, Any]:
    """Values by document; keys are text, as JSON has them."""
    main = main_metric(cell)
    fidelity: dict[str, list[float]] = {}
    for document, answer, full in cell.answers():
        fidelity.setdefault(str(document), []).append(fidelity_of(answer["answer"], full["answer"]))
    return {
        FIDELITY: {key: math.fsum(values) / len(values) for key, values in fidelity.items()},
        MAIN: {str(document): value for document, value in cell.metric(main).items()},
        "name": main,
        "higher_is_better": cell.higher_is_better(main),
    }


def _require_same_tasks(baseline: dict[str, Any], run: Run) -> None:
    from kvcomp_eval.compare.fingerprint import differences

    for record in run.complete():
        assert record.cell is not None
        assert record.settings is not None
        before = baseline["tasks"].get(record.cell.task)
        now = {"task": record.settings["task"], "limit": record.settings["limit"]}
        if before is not None and before != now:
            raise ConfigError(
                f"Task {record.cell.task} changed since the baseline ({'; '.join(differences(before, now))}); "
                "write the baseline anew."
            )
