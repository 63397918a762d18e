"""What is compared: stock transformers, and any registered method on our cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from kvcomp_eval.attention import get_backend, switched_attention
from kvcomp_eval.bench.quantities import CacheBytes, cpu_seconds
from kvcomp_eval.bench.synthetic import LayerTensors
from kvcomp_eval.cache import KVCache
from kvcomp_eval.compat import cache_keyword
from kvcomp_eval.inputs import AttentionInputs
from kvcomp_eval.methods.base import Method
from kvcomp_eval.methods.registry import make_method, method_names
from kvcomp_eval.prompt import Prompt
from kvcomp_eval.session import attach, inputs_handed_over

STOCK = "stock"
FULL = "full"


class Contender:
    """One cache under one name, and how the model runs on it.

    Parameters
    ----------
    name : str
        ``stock`` (transformers' ``DynamicCache`` and sdpa) or a method's name.
    method : Method, optional
        None for ``stock``.
    """

    def __init__(self, name: str, method: Method | None) -> None:
        self.name = name
        self.method = method
        self.attention = "sdpa" if method is None else get_backend("sdpa").registered_name
        self.cache: Any = None

    def start(self, prompt: Prompt, num_layers: int, reserve: int) -> None:
        """An empty cache for this prompt."""
        self.cache = DynamicCache() if self.method is None else KVCache(self.method, prompt, num_layers, reserve)

    def fill(self, model: Any, layer: int, tensors: LayerTensors, scaling: float) -> None:
        """Put one layer's prompt into the cache, on the path that a prefill takes, without its attention."""
        if self.method is None:
            self.cache.update(tensors.keys, tensors.values, layer)
            return
        packed = self.cache.packed_layers[layer]
        if self.method.needs_inputs:
            decoder = model.get_decoder()
            embeddings = decoder.rotary_emb(tensors.hidden, torch.arange(tensors.hidden.shape[1])[None])
            module = decoder.layers[layer].self_attn
            packed.inputs = AttentionInputs.of(module, decoder.rotary_emb.inv_freq, tensors.hidden, embeddings)
        packed.update(tensors.keys, tensors.values, kwargs={})
        packed.attend(
            _no_attention, torch.nn.Identity(), tensors.queries, tensors.keys, tensors.values, None, scaling=scaling
        )

    @contextmanager
    def selected(self, model: Any) -> Iterator[None]:
        """The model runs this contender's attention inside the block."""
        handed_over = nullcontext() if self.method is None else inputs_handed_over(model, self.method)
        with switched_attention(model, self.attention), handed_over:
            yield

    def timed_run(self, model: Any, input_ids: Tensor, position_ids: Tensor) -> tuple[float, Tensor]:
        """CPU seconds of :meth:`run` under this contender's attention, and its logits."""
        with self.selected(model):
            return cpu_seconds(partial(self.run, model, input_ids, position_ids))

    def run(self, model: Any, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """One forward on the cache; logits of the last token [1, vocabulary]."""
        inputs = {cache_keyword(model): self.cache, "position_ids": position_ids, "logits_to_keep": 1}
        with torch.inference_mode():
            return model(input_ids=input_ids, use_cache=True, **inputs).logits[:, -1]

    def measure(self) -> CacheBytes:
        """Realised bytes of the cache as it is now."""
        if self.method is None:
            held = sum(
                part.untyped_storage().nbytes() for layer in self.cache.layers for part in (layer.keys, layer.values)
            )
            return CacheBytes(device=held, host=0, index=0, read_per_step=held)
        report = self.cache.report()
        retrieved = report.reads_per_step * report.full_bytes // (2 * report.full_entries)
        return CacheBytes(
            device=report.device_bytes,
            host=report.host_bytes,
            index=report.index_bytes,
            read_per_step=report.prompt_bytes + report.index_bytes + retrieved,
        )

    def details(self) -> dict[str, Any]:
        """Facts of the method, without its per-head scores."""
        return {} if self.method is None else {"budgets": self.cache.details.get("budgets", [])}


def make_contenders(names: Sequence[str], budget: float, model: Any, **parameters: dict[str, Any]) -> list[Contender]:
    """Contenders by name, those that have to measure the model first (RazorAttention) with what they measured.

    Parameters
    ----------
    budget : float
        ``budget_ratio`` up to 1, ``budget_entries`` above.
    parameters : dict
        Hyper-parameters by method.

    Raises
    ------
    ValueError
        A name that is neither ``stock`` nor a registered method.
    """
    allowed = (STOCK, *method_names())
    contenders = []
    for name in names:
        if name not in allowed:
            raise ValueError(f"Contender {name!r} is not known; use some of {', '.join(allowed)}.")
        method = None
        if name != STOCK:
            given = parameters.get(name, {}) | ({} if name == FULL else _budget(budget))
            with attach(model, make_method(name, **given)) as session:
                method = session.method
        contenders.append(Contender(name, method))
    return contenders


def rotated(contenders: Sequence[Contender], turn: int) -> list[Contender]:
    """The order of one round: every contender comes first in turn."""
    shift = turn % len(contenders)
    return [*contenders[shift:], *contenders[:shift]]


def _budget(budget: float) -> dict[str, float]:
    return {"budget_ratio": budget} if budget <= 1 else {"budget_entries": int(budget)}


def _no_attention(module: Any, query: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    return query.transpose(1, 2), None
