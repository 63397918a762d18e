"""Merging evicted entries into the kept ones (LOOK-M eqs. 9-12)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from kvcomp_eval.selection import other_positions

MERGE_RULES = ("averaged", "pivotal", "weighted")
_EVICTED_BLOCK = 1024


@dataclass(frozen=True)
class Merge:
    """How a kept entry absorbs the evicted entries whose keys are nearest to its own.

    The nearest kept key by cosine similarity takes an evicted entry; its value goes to the same place. With n
    entries absorbed, a kept vector x becomes (Wan et al., LOOK-M, arXiv 2406.18139):

    - ``averaged``: ``(x + sum e) / (n + 1)``
    - ``pivotal``: ``(x + sum (e + x) / 2) / (n + 1)``
    - ``weighted``: ``(x + sum cos(key_e, key_x) e) / (n + 1)``

    Parameters
    ----------
    rule : str
    filtered : bool
        Merge only evicted entries whose best cosine reaches the mean of the best cosines; the others are dropped
        (the official code's averaged and weighted variants).
    """

    rule: str = "pivotal"
    filtered: bool = False

    def __post_init__(self) -> None:
        if self.rule not in MERGE_RULES:
            raise ValueError(f"merge rule {self.rule!r} is not known; use one of {', '.join(MERGE_RULES)}.")

    def __call__(self, keys: Tensor, values: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Merged keys and values [k, D] of one head, in the order of ``kept``.

        Parameters
        ----------
        keys, values : Tensor [N, D]
        kept : Tensor [k], int64
        """
        evicted = other_positions(kept, len(keys))
        kept_keys, evicted_keys = keys[kept].float(), keys[evicted].float()
        similarity, target = nearest(evicted_keys, kept_keys)
        weight = similarity if self.rule == "weighted" else torch.full_like(similarity, self._share)
        count = torch.ones_like(similarity)
        if self.filtered and len(similarity):
            passes = similarity >= similarity.mean()
            weight, count = weight * passes, count * passes
        absorbed = torch.zeros(len(kept), device=keys.device).index_add_(0, target, count).unsqueeze(1)
        own = 1 + absorbed / 2 if self.rule == "pivotal" else torch.ones_like(absorbed)
        merged = []
        for kept_vectors, evicted_vectors in ((kept_keys, evicted_keys), (values[kept], values[evicted])):
            total = (kept_vectors.float() * own).index_add_(0, target, evicted_vectors.float() * weight.unsqueeze(1))
            merged.append((total / (absorbed + 1)).to(keys.dtype))
        return merged[0], merged[1]

    @property
    def _share(self) -> float:
        return 0.5 if self.rule == "pivotal" else 1.0


def nearest(evicted: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and index of the nearest kept key of each evicted key; ties go to the lower index.

    Parameters
    ----------
    evicted : Tensor [e, D]
    kept : Tensor [k, D]

    Returns
    -------
    Tensor [e] and Tensor [e] int64
        In blocks of evicted keys, so that at most ``1024 * k`` cosines exist at a time.
    """
    directions = F.normalize(kept, dim=1).T
    best = [(F.normalize(block, dim=1) @ directions).max(dim=1) for block in evicted.split(_EVICTED_BLOCK)]
    return torch.cat([b.values for b in best]), torch.cat([b.indices for b in best])
