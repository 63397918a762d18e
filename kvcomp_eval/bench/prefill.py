"""Time of the prompt's forward, with what a method adds to it: observation and packing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from kvcomp_eval.bench.backbone import DTYPES, Shape, build_backbone
from kvcomp_eval.bench.contenders import make_contenders, rotated
from kvcomp_eval.bench.quantities import CacheBytes, Latency, Measurement
from kvcomp_eval.bench.synthetic import image_prompt

#: Heads of a random model all look around diffusely; a quantile makes half of them dynamic, as in a trained one.
PARAMETERS = {"hybridkv": {"theta_quantile": 0.5}}


def measure_prefill(
    names: Sequence[str],
    budget: float,
    shape: Shape,
    length: int,
    dtype: str,
    rounds: int,
    warmup: int = 1,
    seed: int = 0,
) -> list[Measurement]:
    """Prefill cost of every contender: one forward of the prompt, as ``generate`` runs it, contenders interleaved."""
    model = build_backbone(shape, DTYPES[dtype], length + 1, seed)
    with TemporaryDirectory() as folder:
        parameters = PARAMETERS | {"sparsemm": {"head_scores": _uniform_scores(shape, Path(folder))}}
        contenders = make_contenders(names, budget, model, **parameters)
    prompt = image_prompt(length)
    tokens = torch.randint(shape.vocabulary, (1, length), generator=torch.Generator().manual_seed(seed))
    positions = torch.arange(length)[None]
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    caches: dict[str, CacheBytes] = {}
    for turn in range(warmup + rounds):
        for contender in rotated(contenders, turn):
            contender.start(prompt, shape.layers, reserve=32)
            elapsed, _ = contender.timed_run(model, tokens, positions)
            seconds[contender.name].append(elapsed)
            caches[contender.name] = contender.measure()
    return [
        Measurement(
            phase="prefill",
            contender=contender.name,
            dtype=dtype,
            length=length,
            latency=Latency(tuple(seconds[contender.name][warmup:])),
            cache=caches[contender.name],
            floor_seconds=None,
            details=contender.details(),
        )
        for contender in contenders
    ]


def _uniform_scores(shape: Shape, folder: Path) -> str:
    """Head scores for SparseMM; which heads score high does not matter for its cost."""
    file = folder / "heads.json"
    file.write_text(json.dumps({"scores": [[1.0] * shape.query_heads] * shape.layers}))
    return str(file)
