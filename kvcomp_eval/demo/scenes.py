"""Procedural scenes: grids of coloured shapes, drawn with numpy only.

A scene is a grid of ``grid x grid`` cells of 56 pixels (one ViT window, 2 x 2 merged tokens of
Qwen2.5-VL). The background's red and blue channels grow with x and y: this ViT has no absolute position,
so the background is the cue for row and column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CELL = 56
MAX_GRID = 5
SIZES = ("small", "large")
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "white", "black")
SHAPES = ("circle", "square", "triangle", "cross", "ring", "diamond")
COLOUR_VALUES = np.array(
    [
        (225, 30, 35),
        (30, 160, 45),
        (40, 70, 235),
        (245, 225, 40),
        (250, 135, 15),
        (150, 40, 180),
        (250, 250, 250),
        (10, 10, 10),
    ],
    dtype=np.float32,
)
# Half of an object's extent in pixels, per size: lower and upper bound of the jitter.
HALF_EXTENT = ((10.0, 13.0), (18.0, 22.0))
EMPTY = -1


@dataclass(frozen=True)
class Scene:
    """One grid of objects.

    Parameters
    ----------
    objects : np.ndarray
        int64 [grid, grid, 3]: size, colour and shape index per cell, `EMPTY` where there is no object.
    """

    objects: np.ndarray

    @property
    def grid(self) -> int:
        """Number of rows, which equals the number of columns."""
        return int(self.objects.shape[0])

    def phrase(self, row: int, column: int) -> str | None:
        """Return "small red circle" for an occupied cell, None for an empty one."""
        size, colour, shape = self.objects[row, column]
        if size == EMPTY:
            return None
        return f"{SIZES[size]} {COLOURS[colour]} {SHAPES[shape]}"

    def occupied(self) -> list[tuple[int, int]]:
        """Return the (row, column) of each object in reading order."""
        return [(int(r), int(c)) for r, c in np.argwhere(self.objects[..., 0] != EMPTY)]


def random_scene(rng: np.random.Generator, grid: int) -> Scene:
    """Draw a scene with at least one object; the share of occupied cells is uniform in [.2, .95]."""
    filled = rng.random((grid, grid)) < rng.uniform(0.2, 0.95)
    if not filled.any():
        filled[rng.integers(grid), rng.integers(grid)] = True
    attributes = rng.integers(0, (len(SIZES), len(COLOURS), len(SHAPES)), size=(grid, grid, 3))
    return Scene(np.where(filled[..., None], attributes, EMPTY))


def _shape_masks(x: np.ndarray, y: np.ndarray, half: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Return which pixels each object covers: bool [N, CELL, CELL], from centred coordinates."""
    u, v = x / half, y / half
    radius = np.hypot(u, v)
    absolute_u, absolute_v = np.abs(u), np.abs(v)
    candidates = (
        radius <= 1.0,
        np.maximum(absolute_u, absolute_v) <= 0.88,
        (v <= 0.85) & (absolute_u <= (v + 0.95) * 0.55),
        np.minimum(absolute_u, absolute_v) * 3.2 <= 1.0,
        (radius <= 1.0) & (radius >= 0.58),
        absolute_u + absolute_v <= 1.1,
    )
    inside = np.maximum(absolute_u, absolute_v) <= 1.0
    return np.choose(shape, candidates) & inside


def render(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Draw a scene with jittered objects and pixel noise.

    Returns
    -------
    np.ndarray
        uint8 [grid * 56, grid * 56, 3].
    """
    grid, side = scene.grid, scene.grid * CELL
    ramp = np.arange(side, dtype=np.float32) / (MAX_GRID * CELL)
    image = np.empty((side, side, 3), dtype=np.float32)
    image[..., 0] = 50 + 150 * ramp[None, :]
    image[..., 1] = 110
    image[..., 2] = 50 + 150 * ramp[:, None]

    cells = scene.objects.reshape(-1, 3)
    present = cells[:, 0] != EMPTY
    size, colour, shape = (np.where(present, cells[:, i], 0) for i in range(3))
    count = len(cells)
    bounds = np.array(HALF_EXTENT, dtype=np.float32)[size]
    half = rng.uniform(bounds[:, 0], bounds[:, 1]).astype(np.float32)
    shift = rng.uniform(-1, 1, size=(count, 2)) * (CELL / 2 - 2 - half)[:, None] * 0.6
    axis = np.arange(CELL, dtype=np.float32) - (CELL - 1) / 2
    masks = _shape_masks(
        axis[None, None, :] - shift[:, 0, None, None].astype(np.float32),
        axis[None, :, None] - shift[:, 1, None, None].astype(np.float32),
        half[:, None, None],
        shape[:, None, None],
    )
    masks &= present[:, None, None]
    tint = COLOUR_VALUES[colour] + rng.uniform(-12, 12, size=(count, 3)).astype(np.float32)
    tiles = image.reshape(grid, CELL, grid, CELL, 3).transpose(0, 2, 1, 3, 4).reshape(count, CELL, CELL, 3)
    tiles = np.where(masks[..., None], tint[:, None, None, :], tiles)
    image = tiles.reshape(grid, grid, CELL, CELL, 3).transpose(0, 2, 1, 3, 4).reshape(side, side, 3)
    noise = rng.integers(-10, 11, size=image.shape, dtype=np.int8)
    return np.clip(image + noise, 0, 255).astype(np.uint8)
