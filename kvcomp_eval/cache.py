"""The transformers ``Cache`` that a compressed ``generate`` runs on.

Lengths that it reports are logical (tokens seen), so positions never shift; what is physically kept is
known to each layer's store alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from kvcomp_eval.attention import LAYER_KEY
from kvcomp_eval.inputs import AttentionInputs
from kvcomp_eval.methods.base import LayerPrefill, Method
from kvcomp_eval.prompt import Prompt
from kvcomp_eval.report import CacheReport
from kvcomp_eval.stores.heads import HeadPlan, HeadStore

_DEFAULT_RESERVE = 128


class KVCacheLayer(CacheLayerMixin):
    """One layer: the prompt's full keys and values until packed, a :class:`HeadStore` afterwards."""

    is_sliding = False
    supports_early_init = False

    def __init__(self, cache: KVCache, index: int) -> None:
        super().__init__()
        self._cache = cache
        self._index = index
        self._new: tuple[Tensor, Tensor] | None = None
        self.seen = 0
        #: Of the pass at hand, for methods that need them.
        self.inputs: AttentionInputs | None = None
        self.store: HeadStore | None = None
        self.trace: list[Tensor] = []

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        kwargs: dict[str, Any] | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """Take the new keys and values [B, Hkv, q, D] and announce this layer to the attention call."""
        if kwargs is None:
            raise RuntimeError(
                "The attention layer did not hand its keyword arguments to the cache, so compression cannot work; "
                "this model's code is not the one of transformers 5.24."
            )
        if self._new is not None:
            raise RuntimeError(
                f"Layer {self._index} ran with another attention than the registered one, so its output ignored the "
                "cache; run generate() inside `with attach(model, method):` and do not switch the attention there."
            )
        if self.store is None and key_states.shape[2] != self._cache.prompt.padded_length:
            raise ValueError(
                f"The prompt arrived in pieces ({key_states.shape[2]} of {self._cache.prompt.padded_length} tokens); "
                "chunked prefill is not supported: unset prefill_chunk_size."
            )
        self.is_initialized = True
        kwargs[LAYER_KEY] = self
        self._new = (key_states, value_states)
        self.seen += key_states.shape[2]
        return key_states, value_states

    def attend(
        self,
        attention: Callable[..., tuple[Tensor, Any]],
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        """Prompt: full attention, then observe and pack. Later: the store attends to what is kept."""
        self._new = None
        scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
        if self.store is None:
            output = attention(module, query, key, value, attention_mask, **kwargs)
            self._cache.observe(self._index, query, key, value, scaling)
            self.inputs = None
            return output
        asking = self._cache.asking(self._index)
        # A follow-up turn brings several tokens; each is one step, as if it had been generated.
        steps = [
            self._step(
                query[:, :, i : i + 1],
                key[:, :, i : i + 1],
                value[:, :, i : i + 1],
                scaling,
                None if asking is None else asking[:, :, i : i + 1],
            )
            for i in range(query.shape[2])
        ]
        return (steps[0] if len(steps) == 1 else torch.cat(steps, dim=1)), None

    def _step(self, query: Tensor, key: Tensor, value: Tensor, scaling: float, asking: Tensor | None) -> Tensor:
        assert self.store is not None
        output = self.store.step(query, key, value, scaling, asking)
        if self._cache.is_traced:
            self.trace.append(self.store.attended())
        return output

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.store is not None:
            self.store.reorder(beam_idx)

    def reset(self) -> None:
        raise NotImplementedError("A compressed cache belongs to one prompt; make a new one instead of reset().")

    def crop(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            "A compressed cache cannot be cropped; assisted and prompt-lookup decoding are not supported."
        )


class KVCache(Cache):
    """Compressed cache of one ``generate`` call.

    Parameters
    ----------
    method : Method
    prompt : Prompt
        Token kinds of the call's prompts, before any expansion for beams.
    num_layers : int
    reserve : int, optional
        Generated tokens to preallocate room for; grows when needed.
    trace : bool
        Record per step and layer which prompt positions were attended to (for the oracle).
    """

    def __init__(
        self, method: Method, prompt: Prompt, num_layers: int, reserve: int | None = None, trace: bool = False
    ) -> None:
        #: The same objects as ``layers``, under their own type.
        self.packed_layers = [KVCacheLayer(self, index) for index in range(num_layers)]
        super().__init__(layers=list(self.packed_layers))
        self.method = method
        self.prompt = prompt
        self.is_traced = trace
        self.details: dict[str, Any] = {}
        self._reserve = min(reserve or _DEFAULT_RESERVE, _DEFAULT_RESERVE)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._observations: list[list[Any]] = [[] for _ in range(prompt.batch_size)]
        self._carried: list[dict[str, Any]] = [{} for _ in range(prompt.batch_size)]
        self._full_bytes = 0
        self._full_entries = 0
        #: Where the time of the prompt begins; a session moves it in front of a rehearsal.
        self.started = time.perf_counter()
        self._packed_at: float | None = None

    def observe(self, index: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> None:
        """Let the method see one layer's prompt; pack it, or all layers after the last one.

        Parameters
        ----------
        queries : Tensor [B, Hq, N, D]
        keys, values : Tensor [B, Hkv, N, D]
        """
        copies = self._copies(keys.shape[0])
        inputs = self.packed_layers[index].inputs
        self._count_full(keys, values)
        for sample, start in enumerate(self.prompt.starts):
            row = sample * copies
            view = LayerPrefill(
                layer=index,
                num_layers=len(self.layers),
                queries=queries[row, :, start:],
                keys=keys[row, :, start:],
                values=values[row, :, start:],
                visual=self.prompt.sample_visual(sample),
                scaling=scaling,
                carried=self._carried[sample],
                inputs=None if inputs is None else inputs.sample(row, start),
                sample=sample,
            )
            self._observations[sample].append(self.method.observe(view))
        self._waiting.append((keys, values))
        if self.method.scope == "layer" or len(self._waiting) == len(self.layers):
            self._pack(first=index + 1 - len(self._waiting), copies=copies)
        if index + 1 == len(self.layers):
            self._finish_prefill(keys.device)

    def asking(self, index: int) -> Tensor | None:
        """Queries [B, Hq, q, D] by which a layer retrieves at this step, where they are not its own."""
        if not self.method.needs_inputs:
            return None
        current = self.packed_layers[index].inputs
        assert current is not None
        return self.method.asking(self.packed_layers[index - 1].inputs if index else None, current)

    def _pack(self, first: int, copies: int) -> None:
        """Plan the waiting layers sample by sample, pack them and drop their full keys and values."""
        plans = [self.method.plan(seen, self.details) for seen in self._observations]
        starts = [start for start in self.prompt.starts for _ in range(copies)]
        for layer, layer_plans in zip(self.packed_layers[first:], zip(*plans, strict=True), strict=False):
            keys, values = self._waiting.pop(0)
            heads: list[HeadPlan] = [head for sample in layer_plans for _ in range(copies) for head in sample]
            layer.store = HeadStore(heads, keys, values, starts, self._reserve, self.is_traced)
        self._observations = [[] for _ in self._observations]

    def _copies(self, rows: int) -> int:
        """Rows per sample: more than one when ``generate`` expanded the batch (beams, return sequences)."""
        copies, rest = divmod(rows, self.prompt.batch_size)
        if rest:
            raise ValueError(
                f"The cache was made for {self.prompt.batch_size} prompts, but the model ran {rows} rows; "
                "make one cache per generate() call."
            )
        return copies

    def _count_full(self, keys: Tensor, values: Tensor) -> None:
        copies, heads = self._copies(keys.shape[0]), keys.shape[1]
        entries = sum(self.prompt.lengths) * copies * heads
        self._full_entries += entries
        self._full_bytes += entries * (keys.shape[-1] + values.shape[-1]) * keys.element_size()

    def _finish_prefill(self, device: torch.device) -> None:
        self._carried.clear()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self._packed_at = time.perf_counter()

    def entries(self, sample: int) -> list[list[int]]:
        """Prompt entries that a sample holds on the device, per layer and KV head."""
        rows = [layer.store.entries for layer in self.packed_layers if layer.store is not None]
        return [row[sample * self._copies(len(row))] for row in rows]

    @property
    def is_packed(self) -> bool:
        return self._packed_at is not None

    def batch_repeat_interleave(self, repeats: int) -> None:
        raise NotImplementedError("A compressed cache cannot be repeated along the batch.")

    def batch_select_indices(self, indices: Tensor) -> None:
        raise NotImplementedError("A compressed cache cannot drop samples of its batch.")

    def report(self) -> CacheReport:
        """Measure the cache as it is now."""
        ended = time.perf_counter()
        stores = [layer.store for layer in self.packed_layers if layer.store is not None]
        groups = [group for store in stores for group in store.groups]
        retrievers = [group.retriever for group in groups if group.retriever is not None]
        rates = [retriever.refresh_rate for retriever in retrievers if retriever.refresh_rate is not None]
        if rates:
            self.details["refresh_rate"] = sum(rates) / len(rates)
        assert self._packed_at is not None
        return CacheReport(
            method=self.method.name,
            parameters=self.method.parameters(),
            prompt_tokens=self.prompt.lengths,
            visual_tokens=tuple(self.prompt.visual.sum(1).tolist()),
            generated_tokens=self.get_seq_length() - self.prompt.padded_length,
            kept_entries=sum(store.kept_entries for store in stores),
            full_entries=self._full_entries,
            prompt_bytes=sum(group.slots.prompt_bytes for group in groups),
            index_bytes=sum(retriever.index_bytes for retriever in retrievers),
            overhead_bytes=sum(group.slots.mask_bytes for group in groups),
            pool_bytes=sum(retriever.device_bytes for retriever in retrievers),
            host_bytes=sum(retriever.host_bytes for retriever in retrievers),
            generated_bytes=sum(group.slots.generated_bytes for group in groups),
            full_bytes=self._full_bytes,
            reads_per_step=sum(store.reads_per_step for store in stores),
            prefill_seconds=self._packed_at - self.started,
            decode_seconds=ended - self._packed_at,
            details=self.details,
        )
