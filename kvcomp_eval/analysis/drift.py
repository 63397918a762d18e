"""Drift, thresholds and refreshes of a traced run; staleness of the most attended position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from kvcomp_eval.tracing import COLUMNS

TERCILES = ("low", "middle", "high")


def load(path: str | Path) -> pd.DataFrame:
    """Read a trace of :mod:`kvcomp_eval.tracing`; one row per prompt, step and layer."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{str(path)!r} is not a file; make one with method=rcr,trace=FILE.parquet.")
    frame = pd.read_parquet(path)
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise ValueError(f"{str(path)!r} is not a drift trace: it has no column {', '.join(missing)}.")
    return frame


def by_prompt(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean drift, realised rate, steps, last threshold and mean overlap of every prompt."""
    grouped = frame.groupby("prompt")
    return pd.DataFrame(
        {
            "tokens": grouped["tokens"].first(),
            "steps": grouped["step"].max() + 1,
            "drift": grouped["drift"].mean(),
            "rate": grouped["refreshed"].mean(),
            "tau": grouped["tau"].last(),
            "overlap": grouped["overlap"].mean(),
        }
    )


def by_step(frame: pd.DataFrame) -> pd.DataFrame:
    """Drift, threshold and refreshes of every step, each first averaged over a prompt's layers.

    Returns
    -------
    DataFrame
        Indexed by step: ``drift`` and ``tau`` as median over the prompts, with the quartiles ``drift_low`` and so on;
        ``refreshed`` as mean; ``prompts`` that got so far.
    """
    means = frame.groupby(["prompt", "step"])[["drift", "tau", "refreshed"]].mean().groupby("step")
    columns = {"prompts": means.size(), "refreshed": means["refreshed"].mean()}
    for name in ("drift", "tau"):
        quartiles = {"_low": 0.25, "": 0.5, "_high": 0.75}
        columns |= {name + suffix: means[name].quantile(share) for suffix, share in quartiles.items()}
    return pd.DataFrame(columns)


def by_tercile(prompts: pd.DataFrame, scores: pd.DataFrame | None = None) -> pd.DataFrame:
    """Means of the prompts with low, middle and high mean drift.

    Parameters
    ----------
    prompts : DataFrame
        Of :func:`by_prompt`.
    scores : DataFrame, optional
        Columns of scores, indexed by prompt, to average along.
    """
    # Ranks first: equal drifts would make equal bin edges.
    tercile = pd.qcut(prompts["drift"].rank(method="first"), 3, labels=list(TERCILES))
    table = prompts if scores is None else prompts.join(scores)
    means = table.groupby(tercile, observed=True).mean()
    means.index.name = "tercile"
    return means


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation with its two-sided p value."""

    rho: float
    p: float


def correlation(first: Sequence[float] | pd.Series, second: Sequence[float] | pd.Series) -> Correlation:
    """Spearman's rank correlation, average ranks for ties; nan where one side does not vary."""
    from scipy.stats import spearmanr

    if np.ptp(np.asarray(first, dtype=float)) == 0 or np.ptp(np.asarray(second, dtype=float)) == 0:
        return Correlation(float("nan"), float("nan"))
    result = spearmanr(first, second)
    return Correlation(float(result.statistic), float(result.pvalue))


def staleness(mass: Sequence[Tensor], without_sink: bool = False) -> float:
    """Share of heads and steps whose most attended prompt position stays the same at the next step.

    Parameters
    ----------
    mass : sequence of Tensor [S, N]
        Attention of each step, of :class:`kvcomp_eval.stores.record.AttentionRecorder`.
    without_sink : bool
        Leave position 0 out, which often draws attention at every step.
    """
    if len(mass) < 2:
        return float("nan")
    first = 1 if without_sink else 0
    tops = torch.stack([step[:, first:].argmax(dim=1) for step in mass])
    return float((tops[1:] == tops[:-1]).float().mean())


def rate_beyond_law(frame: pd.DataFrame, rho: float, gain: float, tau: float) -> pd.Series:
    """Realised rate minus ``rho + ln(tau_N / tau_0) / (gain N)``, which is 0 for a controller that moves each layer.

    The threshold of a row is the one before its update, so the last row is left out.
    """
    updates = frame.groupby("prompt").size() - 1
    refreshed = frame.groupby("prompt")["refreshed"].apply(lambda column: column.iloc[:-1].sum())
    last = frame.groupby("prompt")["tau"].last()
    return refreshed / updates - (rho + np.log(last / tau) / (gain * updates))
