"""Time of one decode step on a filled cache, contenders interleaved."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kvcomp_eval.bench.backbone import DTYPES, Shape, build_backbone, weight_bytes
from kvcomp_eval.bench.contenders import Contender, make_contenders, rotated
from kvcomp_eval.bench.quantities import Latency, Measurement
from kvcomp_eval.bench.synthetic import image_prompt, layer_tensors


class AttentionClock:
    """CPU time inside the attention modules of a model: projections, retrieval and attention, all layers together."""

    def __init__(self, model: Any) -> None:
        self._seconds = 0.0
        for layer in model.get_decoder().layers:
            layer.self_attn.register_forward_pre_hook(self._enter)
            layer.self_attn.register_forward_hook(self._leave)

    def _enter(self, *_: Any) -> None:
        self._seconds -= time.thread_time()

    def _leave(self, *_: Any) -> None:
        self._seconds += time.thread_time()

    def take(self) -> float:
        """Seconds since the last call."""
        taken, self._seconds = self._seconds, 0.0
        return taken


def fill_caches(
    model: Any, contenders: Sequence[Contender], shape: Shape, length: int, dtype: torch.dtype, steps: int
) -> None:
    """Fill every contender's cache with the same random prompt."""
    prompt = image_prompt(length)
    for contender in contenders:
        contender.start(prompt, shape.layers, reserve=steps)
    for layer in range(shape.layers):
        tensors = layer_tensors(shape, length, dtype, layer)
        for contender in contenders:
            contender.fill(model, layer, tensors, scaling=shape.head_dim**-0.5)


@dataclass
class Steps:
    """What one contender's decode steps took and gave, in their order.

    Parameters
    ----------
    seconds, attention : list of float
        CPU time of the whole step, and inside the attention modules.
    logits : list of Tensor [1, vocabulary]
    """

    seconds: list[float] = field(default_factory=list)
    attention: list[float] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)


def decode_steps(model: Any, contenders: Sequence[Contender], length: int, steps: int) -> dict[str, Steps]:
    """Decode ``steps`` tokens, one step of every contender in turn; the order rotates.

    Returns
    -------
    dict
        Contender -> its steps.
    """
    taken = {contender.name: Steps() for contender in contenders}
    clock = AttentionClock(model)
    for step in range(steps):
        token = torch.tensor([[step % model.config.vocab_size]])
        position = torch.tensor([[length + step]])
        for contender in rotated(contenders, step):
            elapsed, output = contender.timed_run(model, token, position)
            own = taken[contender.name]
            own.seconds.append(elapsed)
            own.attention.append(clock.take())
            own.logits.append(output)
    return taken


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
    contenders = make_contenders(names, budget, model)
    fill_caches(model, contenders, shape, length, DTYPES[dtype], warmup + steps)
    caches = {contender.name: contender.measure() for contender in contenders}
    taken = decode_steps(model, contenders, length, warmup + steps)
    weights = weight_bytes(model)
    return [
        Measurement(
            phase="decode",
            contender=contender.name,
            dtype=dtype,
            length=length,
            latency=Latency(tuple(taken[contender.name].seconds[warmup:])),
            attention=Latency(tuple(taken[contender.name].attention[warmup:])),
            cache=caches[contender.name],
            floor_seconds=(weights + caches[contender.name].read_per_step) / bandwidth,
            details=contender.details(),
        )
        for contender in contenders
    ]
