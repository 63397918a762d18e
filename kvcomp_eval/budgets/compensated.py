"""MadaKV's budgets: a layer spends what its heads ask for, and later layers make up for it."""

from __future__ import annotations

from collections.abc import Sequence

from kvcomp_eval.budgets.apportion import apportion


def compensated_budgets(
    demands: Sequence[int], remaining: int, later_layers: int, most: int, reserve: int = 1
) -> list[int]:
    """Prefix entries of one layer's KV heads.

    The published law for a head's budget, ``phi_{l+1} = phi_l - K_l / (L - l)`` with the surplus K per head
    (arXiv 2506.15724), is ``phi = remaining / remaining layers`` when demands are spent; what is added here is
    that no layer can take what the others need to exist, and that the last one takes exactly the rest.

    Parameters
    ----------
    demands : sequence of int
        One per KV head, in ``1..most``.
    remaining : int
        Entries left for this layer and those above.
    later_layers : int
        Layers above this one.
    most : int
        Prefix tokens of the prompt.
    reserve : int
        Entries that are left for each head of each later layer, at least 1.
    """
    later_heads = later_layers * len(demands)
    total = min(sum(demands), remaining - later_heads * reserve)
    total = max(total, remaining - later_heads * most)
    if total == sum(demands):
        return list(demands)
    return apportion(demands, total, min(1, total // len(demands)), most, mode="clip")
