"""Synthetic pages: words in many sizes, each with the box that it was drawn into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from kvcomp_eval.heads.cells import Box

PROMPT = "Provide all the OCR results of this image."  # the paper's
WIDTH, HEIGHT = 896, 1120
_TEXT = """
acorn afternoon agency almond amber anchor anthem apron arctic ashes autumn avenue axle badge balcony bamboo
barley basket beacon beetle bishop blanket blossom bonus border bottle branch breeze bridge brush bubble bucket
bundle butter cabin cactus camera candle canyon carpet castle cedar cellar chapel cherry chimney circus citizen
climate cobalt comet copper cottage coyote cradle crystal cushion custom daisy dancer decade desert diesel dinner
dolphin donkey dragon drawer dungeon eagle echo elbow ember engine envelope evening fabric falcon feather fiddle
figure finger flannel fossil fountain freight friday galaxy garden garlic ghost giant ginger glacier goblet gossip
gravel grocery guitar gypsum hammer harbour harvest hazel helmet honey hospital humble hunter iceberg igloo
insect ivory jacket jaguar jelly jigsaw journal jungle kettle kingdom kiosk kitchen koala ladder lagoon lantern
laundry lawyer lemon leopard library lobster locket lunar machine magnet mammal mantle marble meadow melody mirror
monsoon mosaic muffin museum mustard napkin narrow nectar nephew nickel noodle notebook nozzle number nylon oasis
obelisk ocean octopus olive onion opera orchid osprey otter oyster paddle panther parcel pebble pelican pepper
piano pigeon pillow planet pocket poetry polish puzzle pyramid quarry quartz quilt rabbit radar raven ribbon
rocket rubber saddle saffron salmon sandal satchel scarf school shadow shelf shovel shrimp silver sister sketch
sleeve soccer spider squash stable statue sugar summit sunset swamp syrup tablet tailor temple tennis thunder
ticket timber tobacco tomato tractor trumpet tulip tunnel turkey turtle umbrella uncle unicorn valley vanilla
velvet vessel village violin volcano voyage waffle walnut warehouse weather whistle willow window winter wizard
wolf wrench yacht yellow yogurt zebra zenith zigzag
"""
#: Plain words, none part of another: a token must occur in one word of a page only.
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True)
class Chunk:
    """A text on a page, and where it stands.

    Parameters
    ----------
    text : str
    box : Box
    image : int
        Index of the page's image that it is on.
    """

    text: str
    box: Box
    image: int = 0


@dataclass(frozen=True)
class Page:
    """A prompt and what can be read off its images.

    Parameters
    ----------
    content : tuple of str and PIL images
        The prompt's parts, in order.
    chunks : tuple of Chunk
    phrase : int
        Tokens of the answer that are looked up together, joined by spaces.
    """

    content: tuple[str | Image.Image, ...]
    chunks: tuple[Chunk, ...]
    phrase: int = 1


class Pen(NamedTuple):
    """Letter size in pixels, and colour."""

    size: int
    ink: tuple[int, int, int]


def make_page(seed: int, index: int) -> Page:
    """Draw page ``index`` of a seed: paragraphs of words that do not repeat, on a light ground."""
    rng = np.random.default_rng([seed, index])
    image = Image.new("RGB", (WIDTH, HEIGHT), _colour(rng, 200, 256))
    draw = ImageDraw.Draw(image)
    chunks: list[Chunk] = []
    words = iter(rng.permutation(WORDS))
    top = rng.uniform(20, 80)
    while top < HEIGHT - 80:
        pen = Pen(int(rng.integers(22, 53)), _colour(rng, 0, 110))
        for _ in range(rng.integers(1, 5)):
            chunks += _write_line(draw, words, pen, top, rng)
            top += pen.size * 1.35
            if top > HEIGHT - 80:
                break
        top += rng.uniform(10, 50)
    return Page((image, PROMPT), tuple(chunks))


def _write_line(
    draw: ImageDraw.ImageDraw,
    words: Iterator[str],
    pen: Pen,
    top: float,
    rng: np.random.Generator,
) -> list[Chunk]:
    """Write words from a random indent on until the line is full."""
    left, chunks = rng.uniform(20, 160), []
    font = ImageFont.load_default(pen.size)
    for word in words:
        x0, y0, x1, y1 = draw.textbbox((left, top), str(word), font=font)
        if x1 > WIDTH - 20:
            break  # the word is lost; there are enough of them
        draw.text((left, top), str(word), fill=pen.ink, font=font)
        chunks.append(Chunk(str(word), (x0 / WIDTH, y0 / HEIGHT, x1 / WIDTH, y1 / HEIGHT)))
        left = x1 + pen.size * 0.4
    return chunks


def _colour(rng: np.random.Generator, low: int, high: int) -> tuple[int, int, int]:
    red, green, blue = rng.integers(low, high, 3).tolist()
    return red, green, blue
