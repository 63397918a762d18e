"""SparseMM's allocation: heads of the whole model share its budget by scores that were measured once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvcomp_eval import demo
from kvcomp_eval.budgets.apportion import apportion

#: The value that names the scores of the embedded model.
DEMO = "demo"
_REMEDY = "measure them with `kvcomp-eval heads --model MODEL --output heads.json`"


@dataclass(frozen=True)
class HeadScores:
    """How much each query head looks at what the model reads off an image.

    Parameters
    ----------
    values : np.ndarray [L, Hq]
        Non-negative; only their ratios matter.
    source : dict
        What else the file says: model, revision, seed, pages.
    """

    values: np.ndarray
    source: dict[str, Any]

    @classmethod
    def read(cls, path: str | None) -> HeadScores:
        """Read a file of ``kvcomp-eval heads``, or any JSON object with a table ``scores`` [L, Hq].

        Parameters
        ----------
        path : str
            A file, or ``demo`` for the scores of the embedded model.
        """
        if path is None:
            raise ValueError(f"SparseMM needs head scores: give head_scores=heads.json, and {_REMEDY}.")
        file = demo.head_scores_path() if path == DEMO else Path(path)
        if not file.is_file():
            raise ValueError(f"head_scores={path!r} is not a file; {_REMEDY}.")
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            values = np.array(content.pop("scores"), dtype=float)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"head_scores={path!r} does not hold a JSON object with a table `scores` [layers, query heads] "
                f"({type(error).__name__}: {error}); {_REMEDY}."
            ) from error
        if values.ndim != 2 or not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
            raise ValueError(
                f"head_scores={path!r} must hold finite, non-negative scores [layers, query heads], not all zero; "
                f"{_REMEDY}."
            )
        return cls(values, content)

    def per_kv_head(self, num_layers: int, num_heads: int, num_kv_heads: int) -> np.ndarray:
        """Sums over the GQA groups as shares of the model, [L, Hkv]; refuses scores of another model."""
        if self.values.shape != (num_layers, num_heads):
            has = "{} layers of {} query heads".format(*self.values.shape)
            raise ValueError(
                f"The head scores are for {has}, but the model has {num_layers} of {num_heads}; {_REMEDY}."
            )
        return self.values.reshape(num_layers, num_kv_heads, -1).sum(-1) / self.values.sum()


def head_score_budgets(shares: np.ndarray, base: int, most: int, ratio: float, official: bool = False) -> np.ndarray:
    """Prefix entries of every KV head of the model.

    Wang et al., arXiv 2506.05344, section 3.3: a part ``ratio`` of the budget is the same for all heads, the
    rest is proportional to the scores, over all layers and heads.

    Parameters
    ----------
    shares : np.ndarray [L, Hkv]
        Summing to 1.
    base : int
        Mean entries per head, window excluded.
    most : int
        Prefix tokens of the prompt, at least ``base``. What a head cannot use goes to the others.
    official : bool
        The published rounding: no exact total, and what a head cannot use is lost.

    Returns
    -------
    np.ndarray [L, Hkv], int64
        Sums to ``L * Hkv * base`` exactly unless ``official``.
    """
    least = int(base * ratio)
    if official:
        spare = (base - least) * shares.size
        return np.minimum(np.round(shares * spare + least), most).astype(int)
    parts = apportion(list(shares.ravel()), shares.size * base, least, most)
    return np.array(parts).reshape(shares.shape)
