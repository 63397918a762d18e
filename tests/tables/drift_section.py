"""The section on drift of ``docs/dynamic.md``: who needs re-selection, and how fast attention moves on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from kvcomp_eval import attach, make_method
from kvcomp_eval.analysis import drift
from kvcomp_eval.demo.evaluate import MAX_NEW_TOKENS, Demo
from kvcomp_eval.demo.heldout import document
from kvcomp_eval.methods.oracle import Watched, recorder

TASK = "describe"
#: BACON's selection, never refreshed, is the common yardstick of a document's drift.
RUNS: dict[str, dict[str, Any]] = {"never": {"tau": math.inf}, "fixed": {"gain": 0.0}, "rcr": {}}
WINDOW = 32


def drift_section(
    model: Demo, fidelity: Mapping[str, Mapping[int, float]], limit: int, batch: int, folder: Path
) -> list[str]:
    """Markdown lines.

    Parameters
    ----------
    fidelity : mapping
        Row -> document -> ROUGE-L F1 to the full cache's answer, at 32 selected entries.
    limit : int
        Documents, the first ones.
    folder : Path
        Traces are kept there, and not made again.
    """
    folder.mkdir(exist_ok=True)
    runs = {name: drift.by_prompt(_trace(model, name, limit, batch, folder)) for name in RUNS}
    scores = pd.DataFrame({name: [values[i] for i in range(limit)] for name, values in fidelity.items()})
    scores.insert(0, "rate, fixed", runs["fixed"]["rate"])
    scores.insert(1, "rate, rcr", runs["rcr"]["rate"])
    terciles = drift.by_tercile(runs["never"], scores)
    lines = ["", f"## Drift, {limit} descriptions at 32 selected entries", ""]
    lines += [f"| tercile of mean drift | drift | {' | '.join(scores)} |", "|---|---|" + "---|" * len(scores.columns)]
    for name, row in terciles.iterrows():
        lines.append(f"| {name} | {row['drift']:.3f} | {' | '.join(f'{row[column]:.3f}' for column in scores)} |")
    with_sink, without = _staleness(model, limit, folder)
    gap = drift.correlation(runs["never"]["drift"], scores["rcr, update=layer"] - scores["infinigen"])
    length = drift.correlation(runs["never"]["drift"], runs["never"]["steps"])
    return [
        *lines,
        "",
        f"Spearman's correlation of mean drift with RCR's lead over InfiniGen: {gap.rho:+.2f} (p = {gap.p:.2g}); with "
        f"the length of the answer: {length.rho:+.2f} (p = {length.p:.2g}). With the full cache, a head's most "
        f"attended prefix position is the same at the next step in {with_sink:.0%} of cases, without position 0 in "
        f"{without:.0%}.",
    ]


@torch.inference_mode()
def _trace(model: Demo, name: str, limit: int, batch: int, folder: Path) -> pd.DataFrame:
    path = folder / f"{name}-{limit}.parquet"
    if not path.exists():
        unfinished = path.with_suffix(".part")
        unfinished.unlink(missing_ok=True)
        method = make_method("rcr", budget_entries=WINDOW + 32, **RUNS[name])
        with method.traced(unfinished) as traced, attach(model.model, traced):
            for start in tqdm(range(0, limit, batch), desc=f"drift, {name}", leave=False):
                inputs = model.inputs(*(document(TASK, i) for i in range(start, min(start + batch, limit))))
                model.model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS[TASK], do_sample=False)
        unfinished.rename(path)
    return drift.load(path)


@torch.inference_mode()
def _staleness(model: Demo, limit: int, folder: Path) -> tuple[float, float]:
    """Means over documents of what :func:`drift.staleness` gives for each layer, with and without position 0."""
    path = folder / f"staleness-{limit}.csv"
    if not path.exists():
        rows = []
        for i in tqdm(range(limit), desc="staleness", leave=False):
            with attach(model.model, Watched()) as session:
                inputs = model.inputs(document(TASK, i))
                model.model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS[TASK], do_sample=False)
                rows.append([_stale(session.last_cache, without_sink) for without_sink in (False, True)])
        pd.DataFrame(rows, columns=["with", "without"]).to_csv(path, index=False)
    found = pd.read_csv(path).mean()
    return float(found["with"]), float(found["without"])


def _stale(cache: Any, without_sink: bool) -> float:
    layers = [[step[:, :-WINDOW] for step in recorder(cache, i).mass] for i in range(len(cache.layers))]
    return sum(drift.staleness(mass, without_sink) for mass in layers) / len(layers)
