"""Muon: momentum whose update matrix is orthogonalised (Jordan et al. 2024), in float32.

It is used for the weight matrices inside the text layers; embeddings, norms and biases use AdamW.
Source: https://kellerjordan.github.io/posts/muon/
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


def orthogonalise(matrix: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Move all singular values of `matrix` close to 1 by a quintic Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised per matrix.

    Parameters
    ----------
    params : iterable of torch.Tensor
        Matrices only.
    lr : float
        Spectral norm of one step of a square matrix.
    momentum : float
        Decay of the momentum buffer.
    weight_decay : float
        Decoupled weight decay.
    """

    def __init__(
        self, params: Iterable[torch.Tensor], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                buffer = state.setdefault("momentum", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalise(parameter.grad.lerp(buffer, group["momentum"]))
                scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * scale)
