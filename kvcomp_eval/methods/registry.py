"""Methods by name. Importing this module imports no torch; a method is loaded when it is asked for."""

from __future__ import annotations

import difflib
import importlib
import types
import typing
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcomp_eval.methods.base import Method

#: Name on the command line -> module and class.
METHODS = {
    "full": ("kvcomp_eval.methods.full", "Full"),
    "snapkv": ("kvcomp_eval.methods.snapkv", "SnapKV"),
    "hybridkv": ("kvcomp_eval.methods.hybridkv", "HybridKV"),
    "pyramidkv": ("kvcomp_eval.methods.pyramidkv", "PyramidKV"),
    "adakv": ("kvcomp_eval.methods.adakv", "AdaKV"),
    "sparsemm": ("kvcomp_eval.methods.sparsemm", "SparseMM"),
    "bacon": ("kvcomp_eval.methods.bacon", "Bacon"),
    "h2o": ("kvcomp_eval.methods.h2o", "H2O"),
    "lookm": ("kvcomp_eval.methods.lookm", "LookM"),
    "madakv": ("kvcomp_eval.methods.madakv", "MadaKV"),
    "meda": ("kvcomp_eval.methods.meda", "Meda"),
    "vlcache": ("kvcomp_eval.methods.vlcache", "VLCache"),
    "streamingllm": ("kvcomp_eval.methods.streamingllm", "StreamingLLM"),
    "rcr": ("kvcomp_eval.methods.rcr", "RCR"),
    "exact": ("kvcomp_eval.methods.rcr", "Exact"),
    "prefill_oracle": ("kvcomp_eval.methods.oracle", "PrefillOracle"),
    "random_refresh": ("kvcomp_eval.methods.random_refresh", "RandomRefresh"),
    "quest": ("kvcomp_eval.methods.paged", "Quest"),
    "arkvale": ("kvcomp_eval.methods.paged", "ArkVale"),
    "freekv": ("kvcomp_eval.methods.paged", "FreeKV"),
    "infinigen": ("kvcomp_eval.methods.infinigen", "InfiniGen"),
    "shadowkv": ("kvcomp_eval.methods.shadowkv", "ShadowKV"),
    "magicpig": ("kvcomp_eval.methods.magicpig", "MagicPIG"),
    "duoattention": ("kvcomp_eval.methods.duoattention", "DuoAttention"),
    "razorattention": ("kvcomp_eval.methods.razorattention", "RazorAttention"),
    "random": ("kvcomp_eval.methods.random", "Random"),
}

_WORDS = {"true": True, "false": False, "none": None, "null": None}


def method_names() -> tuple[str, ...]:
    """Registered method names."""
    return tuple(METHODS)


def method_class(name: str) -> type[Method]:
    """The class of a method; ValueError lists the names and suggests the nearest."""
    if name not in METHODS:
        raise ValueError(f"Method {name!r} is not known{suggest(name, METHODS)}; methods are: {', '.join(METHODS)}.")
    module, attribute = METHODS[name]
    found: type[Method] = getattr(importlib.import_module(module), attribute)
    return found


def method_parameters(name: str) -> dict[str, Any]:
    """Hyper-parameters of a method with their defaults."""
    return {item.name: None if item.default is MISSING else item.default for item in fields(method_class(name))}


def make_method(name: str, **parameters: Any) -> Method:
    """Build a method from hyper-parameters as given in Python or on a command line.

    Strings are converted to the parameter's type ("0.1", "true", "none").

    Raises
    ------
    ValueError
        Unknown method, unknown parameter or value outside its range.
    TypeError
        A value that does not fit the parameter's type.
    """
    cls = method_class(name)
    hints = typing.get_type_hints(cls)
    known = [item.name for item in fields(cls)]
    for key in parameters:
        if key not in known:
            raise ValueError(
                f"Method {name} has no parameter {key!r}{suggest(key, known)}; it takes: {', '.join(known)}."
            )
    return cls(**{key: convert(name, key, value, hints[key]) for key, value in parameters.items()})


def convert(method: str, key: str, value: Any, hint: Any) -> Any:
    """Value of one parameter in the type of its annotation."""
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, str) and value.lower() in _WORDS and str not in (allowed if len(allowed) == 1 else ()):
        value = _WORDS[value.lower()]
    for kind in (bool, int, float, str):
        if kind in allowed and (converted := _as_kind(value, kind)) is not None:
            return converted
    if value is None and type(None) in allowed:
        return None
    names = " or ".join("none" if kind is type(None) else kind.__name__ for kind in allowed)
    raise TypeError(f"{key}={value!r} of method {method} must be {names}.")


def suggest(word: str, known: typing.Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _as_kind(value: Any, kind: type) -> Any:
    """The value as exactly this kind, or None where it is not one."""
    if kind is bool or isinstance(value, bool):
        return value if kind is bool and isinstance(value, bool) else None
    if kind is str:
        return value if isinstance(value, str) else None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if kind is int:
        return int(number) if number.is_integer() else None
    return number
