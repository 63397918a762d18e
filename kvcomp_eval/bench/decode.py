"""Time of one decode step on a filled cache, contenders interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvcomp_eval.bench.backbone import DTYPES, Shape, build_backbone, weight_bytes
from kvcomp_eval.bench.contenders import Contender, make_contenders
from kvcomp_eval.bench.quantities import Latency, Measurement, cpu_seconds
from kvcomp_eval.bench.synthetic import image_prompt, layer_tensors


def fill_caches(contenders: Sequence[Contender], shape: Shape, length: int, dtype: torch.dtype, steps: int) -> None:
    """Fill every contender's cache with the same random prompt."""
    prompt = image_prompt(length)
    for contender in contenders:
        contender.start(prompt, shape.layers, reserve=steps)
    for layer in range(shape.layers):
        tensors = layer_tensors(shape, length, dtype, layer)
        for contender in contenders:
            contender.fill(layer, tensors, scaling=shape.head_dim**-0.5)


def decode_steps(
    model: Any, contenders: Sequence[Contender], length: int, steps: int
) -> tuple[dict[str, list[float]], dict[str, list[Tensor]]]:
    """Decode ``steps`` tokens, one step of every contender in turn; the order rotates.

    Returns
    -------
    seconds : dict of list of float
        Per contender, in step order.
    logits : dict of list of Tensor [1, vocabulary]
    """
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    logits: dict[str, list[Tensor]] = {contender.name: [] for contender in contenders}
    for step in range(steps):
        token = torch.tensor([[step % model.config.vocab_size]])
        position = torch.tensor([[length + step]])
        turn = step % len(contenders)
        for contender in [*contenders[turn:], *contenders[:turn]]:
            contender.select(model)
            elapsed, output = cpu_seconds(partial(contender.run, model, token, position))
            seconds[contender.name].append(elapsed)
            logits[contender.name].append(output)
    return seconds, logits


def measure_decode(
    names: Sequence[str],
    budget: float,
    shape: Shape,
    length: int,
    dtype: str,
    steps: int,
    warmup: int,
    bandwidth: float,
    seed: int = 0,
) -> list[Measurement]:
    """Decode cost of every contender at one prompt length.

    Parameters
    ----------
    names : sequence of str
    budget : float
        ``budget_ratio`` of the compressing methods, ``budget_entries`` above 1.
    steps, warmup : int
        Timed steps, and steps before them that are not counted.
    bandwidth : float
        Read bandwidth in bytes per second, for the floor.
    """
    model = build_backbone(shape, DTYPES[dtype], length + warmup + steps, seed)
    contenders = make_contenders(names, budget)
    fill_caches(contenders, shape, length, DTYPES[dtype], warmup + steps)
    caches = {contender.name: contender.measure() for contender in contenders}
    seconds, _ = decode_steps(model, contenders, length, warmup + steps)
    weights = weight_bytes(model)
    return [
        Measurement(
            phase="decode",
            contender=contender.name,
            dtype=dtype,
            length=length,
            latency=Latency(tuple(seconds[contender.name][warmup:])),
            cache=caches[contender.name],
            floor_seconds=(weights + caches[contender.name].read_per_step) / bandwidth,
            details=contender.details(),
        )
        for contender in contenders
    ]
