"""Where in an image each visual token of a prompt lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.image_utils import ChannelDimension

#: left, top, right, bottom as shares of an image's width and height.
Box = tuple[float, float, float, float]
#: Cells that only touch a box do not lie in it.
_TOUCH = 1e-6


@dataclass(frozen=True)
class Cells:
    """The part of an image that each visual token stands for.

    Parameters
    ----------
    boxes : Tensor [n, 4], float64
        As :data:`Box`; nan for tokens without a place, such as the ends of LLaVA's rows.
    image : Tensor [n], int64
        Index of the token's image.
    """

    boxes: Tensor
    image: Tensor

    def overlapping(self, image: int, box: Box) -> Tensor:
        """Which tokens' cells overlap a box of an image, [n] bool."""
        low = torch.maximum(self.boxes[:, :2], torch.tensor(box[:2], dtype=self.boxes.dtype))
        high = torch.minimum(self.boxes[:, 2:], torch.tensor(box[2:], dtype=self.boxes.dtype))
        return ((high - low) > _TOUCH).all(1) & (self.image == image)


def visual_cells(model: Any, inputs: Mapping[str, Any]) -> Cells:
    """Cells of the image tokens of one prompt, in the order of the prompt.

    Parameters
    ----------
    model : PreTrainedModel
        Of one of the families in :data:`FAMILIES`.
    inputs : mapping
        What the model's processor returned for one prompt with images.
    """
    family = model.config.model_type
    if family not in FAMILIES:
        raise ValueError(
            f"For a {family} it is not known where in an image its tokens lie; families are: {', '.join(FAMILIES)}."
        )
    boxes = FAMILIES[family](model, inputs)
    tokens = int((inputs["input_ids"] == model.config.image_token_id).sum())
    if sum(map(len, boxes)) != tokens:
        raise RuntimeError(
            f"The images have {sum(map(len, boxes))} cells, but the prompt has {tokens} image tokens; "
            f"this processor lays out images otherwise than the {family} of transformers 5.24."
        )
    return Cells(torch.cat(boxes), torch.cat([torch.full((len(part),), i) for i, part in enumerate(boxes)]))


def _grid(rows: int, columns: int) -> Tensor:
    """Boxes of a regular grid, row by row, [rows * columns, 4]."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    size = torch.tensor([columns, rows, columns, rows], dtype=torch.float64)
    return torch.stack([x, y, x + 1, y + 1], dim=-1).flatten(0, 1) / size


def _qwen_cells(model: Any, inputs: Mapping[str, Any]) -> list[Tensor]:
    """The image is resized to a grid of patches, and squares of them are merged into one token each."""
    merge = model.config.vision_config.spatial_merge_size
    return [_grid(height // merge, width // merge) for _, height, width in inputs["image_grid_thw"].tolist()]


def _llava_cells(model: Any, inputs: Mapping[str, Any]) -> list[Tensor]:
    """Any-resolution tiles: the model itself crops, joins and shrinks the coordinates as it does its features."""
    config = model.config
    sizes = inputs["image_sizes"]
    in_tiles = len(sizes) == 1 or "batch_num_images" not in inputs  # OneVision cuts up lone images only
    features = [_tile_boxes(config, size) if in_tiles else _tile_boxes(config, size)[:1] for size in sizes.tolist()]
    options = {name: getattr(config, name) for name in _PACKING[config.model_type]}
    nowhere = torch.full((4,), torch.nan, dtype=torch.float64)
    packed, _ = model.model.pack_image_features(features, sizes.cpu(), image_newline=nowhere, **options)
    return list(packed)


def _tile_boxes(config: Any, size: list[int]) -> Tensor:
    """Boxes of the patches of the overview and of each tile of an image, [1 + tiles, patches, 4].

    Parameters
    ----------
    size : [height, width]
        Of the image.
    """
    tile = config.vision_config.image_size
    side = tile // config.vision_config.patch_size
    canvas = select_best_resolution(tuple(size), config.image_grid_pinpoints)
    rows, columns = (length // tile for length in canvas)
    blank = torch.empty((3, *size), device="meta")
    height, width = get_patch_output_size(blank, canvas, ChannelDimension.FIRST)
    left, top = (canvas[1] - width) // 2, (canvas[0] - height) // 2
    pixels = _grid(rows * side, columns * side) * torch.tensor([canvas[1], canvas[0]] * 2)
    boxes = (pixels - torch.tensor([left, top] * 2)) / torch.tensor([width, height] * 2)
    tiles = boxes.view(rows, side, columns, side, 4).transpose(1, 2).reshape(rows * columns, side * side, 4)
    return torch.cat([_grid(side, side)[None], tiles])


#: Arguments of ``pack_image_features`` that are read off the configuration.
_PACKING = {"llava_next": ("vision_feature_select_strategy",), "llava_onevision": ("vision_aspect_ratio",)}

FAMILIES: dict[str, Callable[[Any, Mapping[str, Any]], list[Tensor]]] = {
    "qwen2_vl": _qwen_cells,
    "qwen2_5_vl": _qwen_cells,
    "qwen3_vl": _qwen_cells,
    "llava_onevision": _llava_cells,
    "llava_next": _llava_cells,
}
