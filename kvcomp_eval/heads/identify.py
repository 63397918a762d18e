"""Scores of heads: how often one looks at the very place whose text the model is writing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from torch import Tensor

from kvcomp_eval.heads.cells import Cells, visual_cells
from kvcomp_eval.heads.observe import decode_observed
from kvcomp_eval.heads.pages import Chunk, Page


@dataclass(frozen=True)
class PageScores:
    """What one page contributes.

    Parameters
    ----------
    scores : np.ndarray [L, Hq]
    matched : int
        Tokens of the answer whose place on the page is known.
    """

    scores: np.ndarray
    matched: int


def score_page(model: Any, processor: Any, page: Page, max_new_tokens: int) -> PageScores:
    """Let the model read one page, and score its heads."""
    inputs = page_inputs(processor, page).to(model.device)
    cells = visual_cells(model, inputs)
    tokens, looked_at = decode_observed(model, inputs, max_new_tokens)
    texts = [processor.tokenizer.decode([token], skip_special_tokens=True) for token in tokens]
    owners = find_owners(texts, [chunk.text for chunk in page.chunks], page.phrase)
    return head_scores(cells, [None if owner is None else page.chunks[owner] for owner in owners], looked_at)


def page_inputs(processor: Any, page: Page) -> Any:
    """Processor inputs of one page."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}
        for part in page.content
    ]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    images = [part for part in page.content if not isinstance(part, str)]
    return processor(text=[text], images=images, return_tensors="pt")


def find_owners(tokens: Sequence[str], texts: Sequence[str], phrase: int = 1) -> list[int | None]:
    """For each token of an answer, the only text that it, or the phrase that it is part of, occurs in.

    Parameters
    ----------
    tokens : sequence of str
        Decoded one by one.
    texts : sequence of str
    phrase : int
        Tokens that are looked up together, joined by spaces.

    Returns
    -------
    list
        Index into ``texts``, or None where none or several contain it.
    """
    owners: list[int | None] = [None] * len(tokens)
    stripped = [token.strip() for token in tokens]
    for start in range(len(tokens) - phrase + 1):
        part = stripped[start : start + phrase]
        found = [index for index, text in enumerate(texts) if " ".join(part) in text] if all(part) else []
        if len(found) == 1:
            owners[start : start + phrase] = found * phrase
    return owners


def head_scores(cells: Cells, owners: Sequence[Chunk | None], looked_at: Tensor) -> PageScores:
    """Sum over the tokens with a known place R: ``1 / |R|`` to each head whose most attended image token is in R.

    Wang et al., arXiv 2506.05344, section 3.2.

    Parameters
    ----------
    cells : Cells
    owners : sequence of Chunk or None
        Per token of the answer.
    looked_at : Tensor [T, L, Hq]
    """
    scores, matched = np.zeros(looked_at.shape[1:]), 0
    for chunk, looked in zip(owners, looked_at, strict=True):
        inside = cells.overlapping(chunk.image, chunk.box) if chunk else None
        if inside is not None and inside.any():
            scores += inside[looked].numpy() / int(inside.sum())
            matched += 1
    return PageScores(scores, matched)


def split_half_correlation(pages: Sequence[np.ndarray]) -> float | None:
    """Spearman rank correlation of the query heads' mean scores on even and on odd pages.

    None where a half is empty or gives all heads the same score.

    Parameters
    ----------
    pages : sequence of np.ndarray [L, Hq]
    """
    halves = [np.sum(pages[start::2], axis=0).ravel() for start in (0, 1)]
    if len(pages) < 2 or any(np.ptp(half) == 0 for half in halves):
        return None
    return float(spearmanr(*halves).statistic)
