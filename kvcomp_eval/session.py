"""Make ``model.generate()`` compressed for the length of a ``with`` block."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvcomp_eval.attention import get_backend, switched_attention
from kvcomp_eval.cache import KVCache
from kvcomp_eval.compat import CACHE_KEYWORDS, cache_keyword, text_config
from kvcomp_eval.inputs import AttentionInputs
from kvcomp_eval.methods.base import Method
from kvcomp_eval.prompt import Prompt
from kvcomp_eval.report import CacheReport

#: Arguments of ``generate`` that a compressed cache cannot serve, the values that are fine, and why.
_REFUSED = {
    "cache_implementation": ((None,), "it would replace the compressed cache; unset it"),
    "assistant_model": ((None,), "assisted decoding has to crop the cache"),
    "prompt_lookup_num_tokens": ((None,), "prompt lookup has to crop the cache"),
    "prefill_chunk_size": ((None,), "methods need the whole prompt at once; unset it"),
    "output_attentions": ((None, False), "the kernels return no weights"),
    "use_cache": ((None, True), "without a cache there is nothing to compress"),
}

#: How a rehearsal of a few steps decodes, whatever the call asks for.
_GREEDY = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1, "streamer": None}


class Session:
    """What :func:`attach` yields: makes caches and remembers the latest one's report.

    Parameters
    ----------
    model : PreTrainedModel
    method : Method
    trace : bool
        Record attended positions in :attr:`last_cache` (for the oracle).
    """

    def __init__(self, model: Any, method: Method, trace: bool = False) -> None:
        self._config = model.config
        self._num_layers = text_config(model).num_hidden_layers
        self._defaults = getattr(model, "generation_config", None)
        self._keyword = cache_keyword(model)
        self._generate = model.generate
        self._device = model.device
        self._is_traced = trace
        self.method = method
        self.last_cache: KVCache | None = None

    @property
    def last_report(self) -> CacheReport:
        """Report of the latest ``generate`` call."""
        if self._last_report is None:
            raise RuntimeError("No generate() call has finished in this session yet.")
        return self._last_report

    _last_report: CacheReport | None = None

    def generate(self, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        """``model.generate`` on a fresh compressed cache, or on the cache of an earlier turn."""
        self._refuse_unsupported(args, kwargs)
        given = next((kwargs.pop(name) for name in CACHE_KEYWORDS if kwargs.get(name) is not None), None)
        input_ids = inputs if inputs is not None else kwargs.get("input_ids")
        if input_ids is None:
            raise ValueError("generate() needs input_ids; inputs_embeds alone do not say which tokens are visual.")
        arguments = (inputs, *args) if inputs is not None else args

        def run(cache: KVCache, settings: dict[str, Any]) -> Any:
            return self._generate(*arguments, **settings, **{self._keyword: cache})

        def rehearse(method: Method, steps: int | None = None) -> KVCache:
            settings = kwargs
            if steps is not None:
                # Every sample takes all steps, so that a row of a batch measures what it measures alone.
                settings = kwargs | _GREEDY | {"min_new_tokens": steps + 1, "max_new_tokens": steps + 1}
            cache = self.new_cache(input_ids, args, settings, method)
            run(cache, settings)
            return cache

        if given is None:
            started = time.perf_counter()
            cache = self.new_cache(input_ids, args, kwargs, self.method.prepared(rehearse))
            cache.started = started
        else:
            cache = _follow_up(given, self.method)
        self.last_cache = cache
        output = run(cache, kwargs)
        if not cache.is_packed:
            raise RuntimeError(
                "generate() ended without packing the cache, so nothing was compressed; "
                "this generation mode bypasses the cache."
            )
        self._last_report = cache.report()
        return output

    def read(self, method: Method, input_ids: Any) -> KVCache:
        """The cache of another method after the model has read a text [1, N]."""
        input_ids = input_ids.to(self._device)
        cache = self.new_cache(input_ids, method=method)
        self._generate(
            input_ids=input_ids,
            attention_mask=input_ids.new_ones(input_ids.shape),
            max_new_tokens=1,
            do_sample=False,
            **{self._keyword: cache},
        )
        return cache

    def new_cache(
        self,
        input_ids: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        method: Method | None = None,
    ) -> KVCache:
        """A fresh cache for these prompts, also for hand-written decode loops."""
        kwargs = kwargs or {}
        prompt = Prompt.from_inputs(
            self._config, input_ids, kwargs.get("attention_mask"), kwargs.get("mm_token_type_ids")
        )
        reserve = self._effective("max_new_tokens", args, kwargs)
        return KVCache(method or self.method, prompt, self._num_layers, reserve, self._is_traced)

    def _effective(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A generation argument, from the call, the call's generation_config or the model's."""
        config = kwargs.get("generation_config") or (args[0] if args else None) or self._defaults
        return kwargs[name] if name in kwargs else getattr(config, name, None)

    def _refuse_unsupported(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for name, (accepted, why) in _REFUSED.items():
            value = self._effective(name, args, kwargs)
            if value not in accepted:
                shown = repr(value) if isinstance(value, str | int | float) else type(value).__name__
                raise ValueError(f"generate({name}={shown}) is not supported under compression: {why}.")


@contextmanager
def attach(model: Any, method: Method, prefill: str = "sdpa", trace: bool = False) -> Iterator[Session]:
    """Compress the KV cache of every ``model.generate()`` in the block, and undo it afterwards.

    Each call gets a cache of its own; nothing is kept on modules. Pass ``cache=outputs.cache`` of an earlier
    call (``return_dict_in_generate=True``) to continue a conversation of batch size 1 with text.

    Parameters
    ----------
    model : PreTrainedModel
        Qwen2-VL, Qwen2.5-VL, Qwen3-VL, LLaVA-OneVision, LLaVA-NeXT or a text-only decoder.
    method : Method
        For example ``SnapKV(budget_ratio=0.1)``.
    prefill : str
        Attention of the prompt: ``sdpa``, ``flash_attention_2`` or ``eager``.
    trace : bool
        Record attended positions; see :mod:`kvcomp_eval.reference`.

    Yields
    ------
    Session

    Raises
    ------
    ValueError
        The model has sliding-window layers, is attached already, or the backend is unknown.

    Examples
    --------
    >>> with attach(model, HybridKV(budget_ratio=0.1)) as session:
    ...     output = model.generate(**inputs, max_new_tokens=64)
    >>> session.last_report.realised_ratio
    """
    backend = get_backend(prefill)
    _require_full_attention(model)
    if "generate" in vars(model):
        raise ValueError("This model's generate() is wrapped already; leave the outer `with attach(...)` block first.")
    session = Session(model, method, trace)
    with switched_attention(model, backend.registered_name):
        session.method = method.calibrated(model.config, session.read)
        with inputs_handed_over(model, method):
            model.generate = session.generate
            try:
                yield session
            finally:
                del model.generate


@contextmanager
def inputs_handed_over(model: Any, method: Method) -> Iterator[None]:
    """If the method needs them, every text attention module hands its inputs to the cache layer inside the block."""
    if not method.needs_inputs:
        yield
        return
    decoder = model.get_decoder()

    def hand_over(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        cache = next((kwargs[name] for name in CACHE_KEYWORDS if kwargs.get(name) is not None), None)
        if isinstance(cache, KVCache):
            hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            cache.packed_layers[module.layer_idx].inputs = AttentionInputs.of(
                module, decoder.rotary_emb.inv_freq, hidden, kwargs["position_embeddings"]
            )

    hooks = [layer.self_attn.register_forward_pre_hook(hand_over, with_kwargs=True) for layer in decoder.layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _require_full_attention(model: Any) -> None:
    config = text_config(model)
    kinds = set(getattr(config, "layer_types", None) or ())
    sliding = "sliding_attention" in kinds
    if not kinds:  # Mistral's configuration says it by the window alone
        sliding = getattr(config, "sliding_window", None) is not None
    if sliding:
        raise ValueError(
            f"{type(model).__name__} has sliding-window layers (sliding_window={config.sliding_window}), which forget "
            "by themselves and are not compressed; set text_config.sliding_window to None if the checkpoint "
            "was trained without."
        )


def _follow_up(cache: Any, method: Method) -> KVCache:
    # By parameters: what a method measured on a prompt does not make it another one.
    if (
        not isinstance(cache, KVCache)
        or not cache.is_packed
        or (cache.method.name, cache.method.parameters()) != (method.name, method.parameters())
    ):
        raise ValueError(
            f"generate() was given a {type(cache).__name__} that this session's method did not make; pass "
            "outputs.cache of an earlier call in the same session, or no cache."
        )
    if cache.prompt.batch_size > 1:
        raise ValueError(
            f"Continuing a compressed cache works for one conversation at a time, not {cache.prompt.batch_size}."
        )
    return cache
