"""Random layers of one prompt, and what a method keeps of them."""

from __future__ import annotations

import torch

from kvcomp_eval.methods.base import LayerPrefill


def layers_of_a_prompt(layers=4, length=300, visual=slice(0, 0), kv_heads=3, seed=0):
    """Views of every layer; they share `carried`, as the layers of one prompt do."""
    carried = {}
    mask = torch.zeros(length, dtype=torch.bool)
    mask[visual] = True
    views = []
    for index in range(layers):
        generator = torch.Generator().manual_seed(seed + index)
        views.append(
            LayerPrefill(
                layer=index,
                num_layers=layers,
                queries=2 * torch.randn(2 * kv_heads, length, 16, generator=generator),
                keys=torch.randn(kv_heads, length, 16, generator=generator),
                values=torch.randn(kv_heads, length, 16, generator=generator),
                visual=mask,
                scaling=0.25,
                carried=carried,
            )
        )
    return views


def plans(method, **prompt):
    """The plan of every layer."""
    return method.plan([method.observe(view) for view in layers_of_a_prompt(**prompt)], {})


def kept(method, **prompt):
    """Positions by layer and KV head."""
    return [[head.kept.tolist() for head in layer] for layer in plans(method, **prompt)]


def entries(method, **prompt):
    """Total of the kept positions."""
    return sum(len(head) for layer in kept(method, **prompt) for head in layer)
