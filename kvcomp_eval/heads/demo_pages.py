"""Pages for the embedded model, which cannot read: held-out scenes; an object's phrase is a text, its cell the box."""

from __future__ import annotations

from PIL import Image

from kvcomp_eval.demo.heldout import document, document_scenes, labelled, render_images
from kvcomp_eval.demo.scenes import Scene
from kvcomp_eval.heads.pages import Chunk, Page

#: Documents of one seed; seed 0 starts behind the documents that the demo tasks evaluate.
_PER_SEED = 100_000
_WORDS_OF_A_PHRASE = 3  # size, colour, shape


def make_demo_page(seed: int, index: int) -> Page:
    """Document ``index`` of a seed: several scenes, one of which is to be described."""
    doc = document("describe", (seed + 1) * _PER_SEED + index)
    images: list[str | Image.Image] = [Image.fromarray(image) for image in render_images(doc)]
    chunks = [chunk for index, scene in enumerate(document_scenes(doc)) for chunk in _objects(scene, index)]
    return Page(tuple(labelled(images, doc["question"], str)), tuple(chunks), _WORDS_OF_A_PHRASE)


def _objects(scene: Scene, image: int) -> list[Chunk]:
    side = scene.grid
    boxes = {(r, c): (c / side, r / side, (c + 1) / side, (r + 1) / side) for r, c in scene.occupied()}
    return [Chunk(scene.phrase(*place) or "", box, image) for place, box in boxes.items()]
