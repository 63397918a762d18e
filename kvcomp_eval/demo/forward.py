"""Fast forward passes of the stock modules for packed training.

They use the stock modules' weights and give the stock model's outputs (tested); what differs is only that
windows, images and segments are batched instead of looped over or hidden behind a square mask.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import Qwen2_5_VLForConditionalGeneration

from kvcomp_eval.demo.packing import MERGE, Batch

WINDOW = 4  # patches along a side of a vision window (one cell)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply rotary position embedding to the last dimension."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _window_order(grid: int) -> torch.Tensor:
    """Return [merged tokens]: the order that puts the four merged tokens of each cell side by side."""
    index = torch.arange((MERGE * grid) ** 2).view(grid, MERGE, grid, MERGE)
    return index.permute(0, 2, 1, 3).reshape(-1)


def vision_forward(visual: Any, pixel_values: torch.Tensor, grid: int) -> torch.Tensor:
    """Run the vision tower on N images of equal size.

    Returns
    -------
    torch.Tensor
        [N, cells, 4, hidden]: the merged tokens cell by cell (window order).
    """
    config = visual.config
    heads, head_dim = config.num_heads, config.hidden_size // config.num_heads
    patches = (2 * MERGE * grid) ** 2
    weight = visual.patch_embed.proj.weight
    x = F.linear(pixel_values, weight.view(weight.shape[0], -1)).view(-1, patches, config.hidden_size)
    order = _window_order(grid)

    # Patches come merged token by merged token, each 2 x 2 patches.
    side = MERGE * grid
    blocks = torch.arange(side)
    rows = (blocks.view(-1, 1, 1, 1) * 2 + torch.arange(2).view(1, 1, 2, 1)).expand(side, side, 2, 2)
    columns = (blocks.view(1, -1, 1, 1) * 2 + torch.arange(2).view(1, 1, 1, 2)).expand(side, side, 2, 2)
    positions = torch.stack((rows.reshape(-1), columns.reshape(-1)), dim=1)
    cos, sin = visual.rotary_pos_emb(x, positions)
    cos, sin = (t.view(side * side, 4, -1)[order].view(1, patches, 1, -1) for t in (cos, sin))
    x = x.view(-1, side * side, 4, config.hidden_size)[:, order].reshape(-1, patches, config.hidden_size)

    for index, block in enumerate(visual.blocks):
        length = patches if index in config.fullatt_block_indexes else WINDOW * WINDOW
        qkv = block.attn.qkv(block.norm1(x)).view(-1, patches, 3, heads, head_dim)
        query, key = rotate(qkv[:, :, 0], cos, sin), rotate(qkv[:, :, 1], cos, sin)
        q, k, v = (t.reshape(-1, length, heads, head_dim).transpose(1, 2) for t in (query, key, qkv[:, :, 2]))
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + block.attn.proj(attended.transpose(1, 2).reshape(x.shape))
        x = x + block.mlp(block.norm2(x))
    merged = visual.merger(x.reshape(-1, config.hidden_size))
    return merged.view(-1, grid * grid, 4, merged.shape[-1])


def raster_order(tokens: torch.Tensor, grid: int) -> torch.Tensor:
    """Turn [N, cells, 4, hidden] (cell by cell) into [N, merged tokens, hidden] (row by row)."""
    restore = torch.argsort(_window_order(grid))
    return tokens.flatten(1, 2)[:, restore]


def prefix_positions(images: int, grid: int) -> torch.Tensor:
    """Multimodal positions [3, P] of the prompt up to the last image (tested against get_rope_index)."""
    side = MERGE * grid
    steps = torch.arange(side)
    raster = torch.stack((torch.zeros(side, side, dtype=torch.long), *torch.meshgrid(steps, steps, indexing="ij")))
    parts = [torch.arange(2).expand(3, 2)]  # <|im_start|> user
    start = 2
    for _ in range(images):
        parts.append(torch.arange(start, start + 3).expand(3, 3))  # label (two words), <|vision_start|>
        parts.append(raster.reshape(3, -1) + start + 3)
        start += 3 + side
        parts.append(torch.full((3, 1), start))
        start += 1
    return torch.cat(parts, dim=1)


class PackedText:
    """The text model on a packed batch.

    Parameters
    ----------
    model : Qwen2_5_VLForConditionalGeneration
        The stock model.
    prefix : torch.Tensor
        int64 [P], ids of the prefix (with image placeholders).
    batch : Batch
        The packed batch.
    """

    def __init__(self, model: Qwen2_5_VLForConditionalGeneration, prefix: torch.Tensor, batch: Batch) -> None:
        self.text = model.model.language_model
        config = model.config.text_config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.prefix, self.batch = prefix, batch
        self.image_token = model.config.image_token_id
        self.shapes = [group.ids.shape[1:] for group in batch.groups]
        self.index_states: torch.Tensor | None = None
        positions = [prefix_positions(batch.images, batch.grid)]
        start = int(positions[0].max()) + 1
        for segments, length in self.shapes:
            positions.append((start + torch.arange(length)).repeat(segments).expand(3, -1))
        dummy = torch.empty(0)
        cos, sin = self.text.rotary_emb(dummy, torch.cat(positions, dim=1)[:, None])
        self.cos, self.sin = cos[:, :, None], sin[:, :, None]
        self.masks = [self._segment_mask(length) for _, length in self.shapes]

    def _segment_mask(self, length: int) -> torch.Tensor:
        """Additive mask [length, P + length]: the whole prefix, and the segment's own past."""
        own = torch.full((length, length), float("-inf")).triu(1)
        return torch.cat((torch.zeros(length, len(self.prefix)), own), dim=1)

    def __call__(self, image_tokens: torch.Tensor, index_layer: int | None = None) -> torch.Tensor:
        """Return the final hidden states [samples, P + sum of segments * length, hidden].

        Parameters
        ----------
        image_tokens : torch.Tensor
            [samples, images * merged tokens, hidden], row by row.
        index_layer : int or None
            Layer whose input at the image tokens, [samples, images, merged tokens, hidden], is put in
            `index_states`.
        """
        samples = image_tokens.shape[0]
        ids = [self.prefix.expand(samples, -1), *(group.ids.flatten(1) for group in self.batch.groups)]
        x = self.text.embed_tokens(torch.cat(ids, dim=1))
        is_image = F.pad(self.prefix == self.image_token, (0, x.shape[1] - len(self.prefix)))
        x = x.masked_scatter(is_image[None, :, None], image_tokens)
        for index, layer in enumerate(self.text.layers):
            if index == index_layer:
                states = x[:, : len(self.prefix)][:, self.prefix == self.image_token]
                self.index_states = states.unflatten(1, (self.batch.images, -1))
            x = x + self._attention(layer.self_attn, layer.input_layernorm(x))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.text.norm(x)

    def _attention(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        samples, total, _ = x.shape
        query = rotate(module.q_proj(x).view(samples, total, self.heads, -1), self.cos, self.sin)
        key = rotate(module.k_proj(x).view(samples, total, self.kv_heads, -1), self.cos, self.sin)
        value = module.v_proj(x).view(samples, total, self.kv_heads, -1)
        repeat = self.heads // self.kv_heads
        q = query.transpose(1, 2)
        k, v = (t.transpose(1, 2).repeat_interleave(repeat, dim=1) for t in (key, value))

        prefix = len(self.prefix)
        outputs = [F.scaled_dot_product_attention(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix], is_causal=True)]
        start = prefix
        for number, (segments, length) in enumerate(self.shapes):
            stop = start + segments * length
            sq, sk, sv = (t[:, :, start:stop].unflatten(2, (segments, length)).transpose(1, 2) for t in (q, k, v))
            keys, values = (
                torch.cat((t[:, None, :, :prefix].expand(-1, segments, -1, -1, -1), own), dim=3)
                for t, own in ((k, sk), (v, sv))
            )
            keys, values, sq = keys.flatten(0, 1), values.flatten(0, 1), sq.flatten(0, 1)
            attended = F.scaled_dot_product_attention(sq, keys, values, attn_mask=self.masks[number])
            attended = attended.unflatten(0, (samples, segments)).transpose(1, 2).flatten(2, 3)
            outputs.append(attended)
            start = stop
        return module.o_proj(torch.cat(outputs, dim=2).transpose(1, 2).flatten(2))
