"""From scores and a budget to the prompt positions that a head keeps."""

from __future__ import annotations

import torch
from torch import Tensor


def top_positions(scores: Tensor, count: int) -> Tensor:
    """Positions of the ``count`` largest scores, ascending; of equal scores the lower position wins.

    Parameters
    ----------
    scores : Tensor [P]

    Returns
    -------
    Tensor [count], int64
    """
    order = torch.sort(scores, descending=True, stable=True).indices
    return order[:count].sort().values


def other_positions(chosen: Tensor, count: int) -> Tensor:
    """Positions below ``count`` that are not in ``chosen``, ascending."""
    is_other = torch.ones(count, dtype=torch.bool, device=chosen.device)
    is_other[chosen] = False
    return is_other.nonzero().squeeze(1)


def window_positions(prefix_scores: Tensor, entries: int, prompt_length: int, window: int) -> Tensor:
    """The best ``entries - window`` prefix positions, then the window; ascending.

    Parameters
    ----------
    prefix_scores : Tensor [N - window]
        Scores of the tokens in front of the window.
    """
    recent = torch.arange(prompt_length - window, prompt_length, device=prefix_scores.device)
    return torch.cat([top_positions(prefix_scores, entries - window), recent])


def text_prior_positions(scores: Tensor, visual: Tensor, entries: int, window: int) -> Tensor:
    """Window first, then text, then visual tokens by score (HybridKV section 3.3 and appendix A).

    When window and text overflow the budget, text is kept by score and no visual token is. A budget
    below the window keeps the last ``entries`` tokens.

    Parameters
    ----------
    scores : Tensor [N]
        Window attention of every prompt token.
    visual : Tensor [N], bool
    """
    length = scores.shape[0]
    if entries >= length:
        return torch.arange(length, device=scores.device)
    window = min(window, entries)
    boundary = length - window
    by_score = torch.sort(scores[:boundary], descending=True, stable=True).indices
    text_first = torch.sort(visual[by_score].to(torch.uint8), stable=True).indices
    chosen = by_score[text_first][: entries - window].sort().values
    return torch.cat([chosen, torch.arange(boundary, length, device=scores.device)])
