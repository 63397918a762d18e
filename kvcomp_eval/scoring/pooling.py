"""Pooling of scores along prompt positions."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

POOLINGS = ("avg", "max")


def check_pooling(kernel: int, kind: str) -> None:
    """Raise ValueError unless the kernel is odd and the kind is known."""
    if kind not in POOLINGS:
        raise ValueError(f"pooling={kind!r} is not known; use one of {', '.join(POOLINGS)}.")
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"kernel={kernel} must be odd and at least 1.")


def pool_scores(scores: Tensor, kernel: int, kind: str = "avg") -> Tensor:
    """Smooth scores over neighbouring positions, stride 1, same length.

    ``avg`` counts the zero padding in the divisor (edge scores shrink), ``max`` pads with -inf; both as in
    the SnapKV, AdaKV and BACON codes.

    Parameters
    ----------
    scores : Tensor [H, P]
    kernel : int
        Odd width; 1 leaves the scores as they are.
    """
    check_pooling(kernel, kind)
    if kernel == 1 or scores.shape[-1] == 0:
        return scores
    pool = F.avg_pool1d if kind == "avg" else F.max_pool1d
    return pool(scores.unsqueeze(1), kernel, stride=1, padding=kernel // 2).squeeze(1)
