"""The classes that lmms-eval loads: one module per model family, one class per model id.

A model id is ``<family>_<method>`` or ``<family>_kvcomp``, and ``kvcomp_eval.model_wrappers.<id>`` is its class, made
on demand as a subclass of the family's wrapper that knows its method (:func:`__getattr__`). Importing this module
imports no torch.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from kvcomp_eval.methods.registry import method_names, suggest

#: Ending of the ids whose method is chosen by ``method=`` in ``--model_args``.
OPEN = "kvcomp"


class Family(NamedTuple):
    """Where a family's wrapper is, and what lmms-eval calls its own."""

    class_name: str
    stock_id: str


#: Module of the wrapper -> its class.
FAMILIES = {
    "qwen2_vl": Family("Qwen2VL", "qwen2_vl"),
    "qwen2_5_vl": Family("Qwen2_5VL", "qwen2_5_vl"),
    "qwen3_vl": Family("Qwen3VL", "qwen3_vl"),
    "llava_onevision": Family("LlavaOnevision", "llava_hf"),
    "llava_next": Family("LlavaNext", "llava_hf"),
}


def model_ids() -> tuple[str, ...]:
    """Return every model id, family by family."""
    return tuple(f"{family}_{method}" for family in FAMILIES for method in (*method_names(), OPEN))


def split_model_id(model_id: str) -> tuple[str, str | None]:
    """Split a model id into family and method; the method is None for ``<family>_kvcomp``."""
    for family in FAMILIES:
        method = model_id.removeprefix(f"{family}_")
        if method == OPEN:
            return family, None
        if method != model_id and method in method_names():
            return family, method
    raise ValueError(f"Model id {model_id!r} is not one of ours{suggest(model_id, model_ids())}.")


def __getattr__(name: str) -> type:
    """Make the class of a model id when it is first asked for."""
    try:
        family, method = split_model_id(name)
    except ValueError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    wrapper = getattr(importlib.import_module(f"{__name__}.{family}"), FAMILIES[family].class_name)
    members: dict[str, Any] = {"__module__": __name__, "__doc__": wrapper.__doc__, "fixed_method": method}
    globals()[name] = type(name, (wrapper,), members)
    return globals()[name]
