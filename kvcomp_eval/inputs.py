"""What enters an attention module: for methods that look ahead of a layer's queries or behind their rotation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Rotation:
    """Rotary position embedding of some tokens, by the model's own function.

    Parameters
    ----------
    apply : callable
        ``apply_rotary_pos_emb`` of the model's module.
    cos, sin : Tensor [B, q, D]
        M-RoPE already composed, and scaled where the model scales them.
    """

    apply: Callable[..., tuple[Tensor, Tensor]]
    cos: Tensor
    sin: Tensor

    def turn(self, vectors: Tensor) -> Tensor:
        """Rotate vectors [B, H, q, D], in their dtype."""
        cos, sin = self.cos.to(vectors.dtype), self.sin.to(vectors.dtype)
        # The function rotates queries and keys; there are no keys here.
        return self.apply(vectors, vectors[:, :0], cos, sin)[0]

    def undo(self, vectors: Tensor) -> Tensor:
        """The vectors before their rotation, in float32."""
        cos, sin = self.cos.float(), self.sin.float()
        scale = (cos.square() + sin.square()).unsqueeze(1)
        return self.apply(vectors.float(), vectors[:, :0].float(), cos, -sin)[0] / scale

    def at(self, positions: Tensor) -> Rotation:
        """Rotation of H heads that look at other tokens each: positions [H, m] of the only sample; cos [H, m, D]."""
        return Rotation(self.apply, self.cos[0][positions], self.sin[0][positions])

    @property
    def bytes(self) -> int:
        return self.cos.untyped_storage().nbytes() + self.sin.untyped_storage().nbytes()


@dataclass(frozen=True)
class AttentionInputs:
    """Input of one layer's attention in one forward pass.

    Parameters
    ----------
    module : nn.Module
        The attention module.
    frequencies : Tensor [D / 2]
        Angle in radians by which a text token differs from its neighbour.
    hidden : Tensor [B, q, hidden]
        Hidden states, normalised.
    rotation : Rotation
        Of the same tokens.
    """

    module: nn.Module
    frequencies: Tensor
    hidden: Tensor
    rotation: Rotation

    @classmethod
    def of(cls, module: nn.Module, frequencies: Tensor, hidden: Tensor, embeddings: Any) -> AttentionInputs:
        """From the arguments of the module's forward pass."""
        cos, sin = (part.expand(hidden.shape[0], -1, -1) for part in embeddings)
        apply = sys.modules[type(module).__module__].apply_rotary_pos_emb
        return cls(module, frequencies, hidden, Rotation(apply, cos, sin))

    def queries_of(self, module: Any) -> Tensor:
        """Queries [B, Hq, q, D] that another attention module would make of this input."""
        heads = module.q_proj(self.hidden).unflatten(-1, (-1, module.head_dim))
        if hasattr(module, "q_norm"):
            heads = module.q_norm(heads)
        return self.rotation.turn(heads.transpose(1, 2))

    def sample(self, row: int, start: int) -> AttentionInputs:
        """The real tokens of one row, which begin at ``start``; B = 1."""
        rows = slice(row, row + 1)
        cos, sin = self.rotation.cos[rows, start:], self.rotation.sin[rows, start:]
        rotation = Rotation(self.rotation.apply, cos, sin)
        return AttentionInputs(self.module, self.frequencies, self.hidden[rows, start:], rotation)

    def text_rotation(self, length: int) -> Rotation:
        """Rotation of ``length`` successive text tokens."""
        angles = torch.arange(length, device=self.frequencies.device)[:, None] * self.frequencies
        angles = torch.cat([angles, angles], dim=-1)[None]
        return Rotation(self.rotation.apply, angles.cos(), angles.sin())
