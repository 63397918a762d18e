"""Scores of heads: which token belongs to which text, the score unit, and the stability of the ranking."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvcomp_eval.heads.cells import Cells, visual_cells
from kvcomp_eval.heads.demo_pages import make_demo_page
from kvcomp_eval.heads.identify import find_owners, head_scores, page_inputs, score_page, split_half_correlation
from kvcomp_eval.heads.observe import decode_observed
from kvcomp_eval.heads.pages import HEIGHT, WIDTH, WORDS, Chunk, Page, make_page


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["red", " ring", "blue"], [0, 1, None]),
        ([" r", "ing", "\n"], [None, 1, None]),  # "r" is in both
        ([], []),
    ],
)
def test_a_token_belongs_to_the_only_text_that_has_it(tokens, expected):
    assert find_owners(tokens, ["red", "ring"]) == expected


def test_a_phrase_is_looked_up_as_a_whole():
    tokens = ["two", "small", "red", "ring", ",", "large", "red", "ring", "small", "red"]
    texts = ["small red ring", "large red ring", "large red ring"]
    assert find_owners(tokens, texts, phrase=3) == [None, 0, 0, 0] + [None] * 6


def grid(side):
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    boxes = torch.stack([x, y, x + 1, y + 1], -1).view(-1, 4).double() / side
    return Cells(boxes, torch.zeros(side * side, dtype=torch.long))


def test_a_hit_counts_one_over_the_size_of_the_place():
    chunk = Chunk("word", (0.0, 0.0, 0.5, 0.5))  # cells 0, 1, 4, 5 of a 4 x 4 grid
    looked_at = torch.tensor([[[0, 2]], [[5, 1]], [[15, 15]], [[4, 4]]])  # [T, L=1, Hq=2]
    page = head_scores(grid(4), [chunk, chunk, chunk, None], looked_at)
    assert page.scores.tolist() == [[0.5, 0.25]]
    assert page.matched == 3


def test_a_place_without_tokens_is_not_counted():
    page = head_scores(grid(4), [Chunk("word", (0.1, 0.1, 0.2, 0.2), image=1)], torch.zeros(1, 1, 2, dtype=torch.long))
    assert (page.matched, page.scores.sum()) == (0, 0)


def test_a_page_is_scored_by_where_its_words_are(family, images):
    """The tiny models write noise, so the page is made to hold what they write."""
    _, model, processor = family
    blank = Page((images[1], "Read this."), ())
    inputs = page_inputs(processor, blank)
    tokens, looked_at = decode_observed(model, inputs, 12)
    texts = [processor.tokenizer.decode([token], skip_special_tokens=True) for token in tokens]
    word = next(text.strip() for text in texts if text.strip() and text.isprintable())
    box = (0.0, 0.0, 1.0, 0.5)
    page = score_page(model, processor, Page(blank.content, (Chunk(word, box),)), 12)
    inside = visual_cells(model, inputs).overlapping(0, box)
    steps = [step for step, text in enumerate(texts) if text.strip() and text.strip() in word]
    expected = sum(inside[looked_at[step]].double() for step in steps) / inside.sum()
    assert page.matched == len(steps) > 0
    assert page.scores == pytest.approx(expected.numpy())
    assert 0 < page.scores.sum() < page.scores.size * len(steps) / int(inside.sum())


def test_ranks_of_the_halves_are_compared():
    even, odd = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.0], [4.0, 3.0]])
    assert split_half_correlation([even, even, even, even]) == pytest.approx(1)
    assert split_half_correlation([even, odd, even]) == pytest.approx(0.8)
    assert split_half_correlation([even, -even]) == pytest.approx(-1)
    assert split_half_correlation([even]) is None
    assert split_half_correlation([even, np.zeros((2, 2))]) is None


def test_words_of_a_page_stand_in_their_boxes():
    image, _ = make_page(0, 3).content
    pixels = np.asarray(image).astype(int)
    ground = pixels[0, 0]
    covered = np.zeros(pixels.shape[:2], bool)
    for chunk in make_page(0, 3).chunks:
        x0, y0, x1, y1 = (np.array(chunk.box) * [WIDTH, HEIGHT, WIDTH, HEIGHT]).round().astype(int)
        assert (pixels[y0:y1, x0:x1] != ground).any(), chunk
        covered[y0:y1, x0:x1] = True
    inked = (np.abs(pixels - ground) > 60).any(-1)
    assert inked[~covered].sum() < 0.02 * inked.sum()


def test_words_do_not_repeat_and_none_is_part_of_another():
    texts = [chunk.text for chunk in make_page(1, 0).chunks]
    assert len(texts) == len(set(texts)) > 40
    assert [(a, b) for a in WORDS for b in WORDS if a != b and a in b] == []


@pytest.mark.parametrize("make", [make_page, make_demo_page])
def test_pages_depend_on_seed_and_index_only(make):
    def look(seed, index):
        page = make(seed, index)
        return [np.asarray(part).tobytes() for part in page.content if not isinstance(part, str)], page.chunks

    assert look(0, 1) == look(0, 1)
    assert look(0, 1) != look(0, 2)
    assert look(0, 1) != look(1, 1)


def test_objects_of_a_demo_page_are_in_their_cells():
    page = make_demo_page(0, 0)
    images = [np.asarray(part) for part in page.content if not isinstance(part, str)]
    chunk = next(chunk for chunk in page.chunks if chunk.text.startswith("large") and "white" in chunk.text)
    x0, y0, x1, y1 = (np.array(chunk.box) * 280).round().astype(int)
    cell = images[chunk.image][y0:y1, x0:x1]
    assert cell.shape == (56, 56, 3)
    assert (cell.min(-1) > 220).mean() > 0.05
