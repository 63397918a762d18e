"""``--model_args``: what a wrapper takes, and how what was given becomes typed arguments and a compression method.

Nothing given is ignored: every name must belong to the wrapper or to the method, and every value must fit its type.
"""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from kvcomp_eval.methods.base import Method
from kvcomp_eval.methods.registry import convert, make_method, method_names, method_parameters, suggest

ATTENTIONS = ("sdpa", "flash_attention_2", "eager")
DTYPES = ("auto", "float32", "bfloat16", "float16")
#: Values of ``reference`` that are not a folder.
AUTO, OFF, ONLY = "auto", "off", "only"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments common to all families; names and defaults follow lmms-eval's own wrappers.

    Parameters
    ----------
    pretrained : str
        Folder or hub id of the checkpoint; ``demo`` is the embedded Qwen2.5-VL.
    revision : str
        Revision on the hub.
    device, device_map : str, optional
        Where the model is; default: CUDA where there is one, else the CPU.
    dtype : str, optional
        ``auto``, ``float32``, ``bfloat16`` or ``float16``; default: as lmms-eval's wrapper of the family.
    batch_size : int
        Documents per ``generate`` call, left padded.
    attn : str
        Attention of the prefill and of the vision tower: ``sdpa``, ``flash_attention_2`` or ``eager``.
        ``attn_implementation``, the name in lmms-eval's wrappers, is taken too.
    trust_remote_code : bool
        Passed to ``from_pretrained``.
    report_path : str, optional
        JSON-lines file to which one line per answer is appended: document, bytes held, times, tokens.
    reference : str
        What becomes of the uncompressed answers to the same requests, which fidelity tasks compare with: ``off``: none;
        ``auto``: kept in the user's cache, those that it lacks are generated first; ``only``: likewise, and they are
        the answers of this run; a folder: as ``auto``, kept there.
    """

    pretrained: str
    revision: str = "main"
    device: str | None = None
    device_map: str | None = None
    dtype: str | None = None
    batch_size: int = 1
    attn: str = "sdpa"
    trust_remote_code: bool = False
    report_path: str | None = None
    reference: str = OFF

    def __post_init__(self) -> None:
        if self.attn not in ATTENTIONS:
            raise ValueError(f"attn={self.attn!r} is not known; use one of {', '.join(ATTENTIONS)}.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r} is not known; use one of {', '.join(DTYPES)}.")
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be at least 1.")
        is_folder = os.sep in self.reference and not os.path.isfile(self.reference)
        if self.reference not in (AUTO, OFF, ONLY) and not is_folder:
            raise ValueError(
                f"reference={self.reference!r} is not known; use {AUTO}, {OFF}, {ONLY} or a folder, written with a "
                f"{os.sep!r} (.{os.sep}references)."
            )


#: Arguments of lmms-eval's wrappers that would change nothing or break compression, with the reason.
REFUSED = {
    "max_batch_size": "batches are of fixed size; set batch_size",
    "max_length": "it has no effect in lmms-eval's wrapper either; limit answers with --gen_kwargs max_new_tokens=N",
}

ArgumentsType = TypeVar("ArgumentsType", bound=Arguments)


def parse_arguments(
    model_id: str, kind: type[ArgumentsType], fixed_method: str | None, given: Mapping[str, Any]
) -> tuple[ArgumentsType, Method]:
    """Turn the keyword arguments of a wrapper into its typed arguments and its method.

    Parameters
    ----------
    model_id : str
        For messages.
    kind : type
        The family's arguments.
    fixed_method : str or None
        Method named by the model id; None where ``method=`` must name it.
    given : mapping
        As lmms-eval parsed them: bool, int, float or str.

    Raises
    ------
    ValueError
        Unknown, refused or contradictory argument, or a value out of range.
    TypeError
        A value of the wrong type.
    """
    given = _translate(dict(given))
    method = _method_name(model_id, fixed_method, given)
    ours = {item.name: item for item in fields(kind)}
    theirs = method_parameters(method)
    for name in given:
        if name in REFUSED:
            raise ValueError(f"{name} cannot be used with {model_id}: {REFUSED[name]}.")
        if name not in ours and name not in theirs:
            raise ValueError(
                f"{model_id} has no argument {name!r}{suggest(name, [*ours, *theirs])}. Arguments of the wrapper: "
                f"{', '.join(ours)}. Arguments of method {method}: {', '.join(theirs)}."
            )
    hints = typing.get_type_hints(kind)
    wrapper = {name: _typed(model_id, name, value, hints[name]) for name, value in given.items() if name in ours}
    return kind(**wrapper), make_method(method, **{name: given[name] for name in given if name in theirs})


def _translate(given: dict[str, Any]) -> dict[str, Any]:
    """Rename what lmms-eval's wrappers call differently; drop values that only say what is true anyway."""
    if given.pop("use_flash_attention_2", False):
        given.setdefault("attn_implementation", "flash_attention_2")
    stock = given.pop("attn_implementation", None)
    if stock is not None and given.setdefault("attn", stock) != stock:
        raise ValueError(f"attn={given['attn']!r} and attn_implementation={stock!r} contradict; give one of them.")
    if given.pop("use_cache", True) is not True:
        raise ValueError("use_cache=False leaves no KV cache to compress; drop the argument.")
    return {name: value for name, value in given.items() if value is not None}


def _method_name(model_id: str, fixed: str | None, given: dict[str, Any]) -> str:
    names = ", ".join(method_names())
    chosen = given.pop("method", None)
    if fixed is not None:
        if chosen not in (None, fixed):
            other = f"{model_id.removesuffix(fixed)}kvcomp"
            raise ValueError(f"{model_id} is method {fixed}, not {chosen}; drop method= or use --model {other}.")
        return fixed
    if chosen is None:
        raise ValueError(f"{model_id} needs method= in --model_args; methods are: {names}.")
    if chosen not in method_names():
        raise ValueError(f"Method {chosen!r} is not known{suggest(str(chosen), method_names())}; methods are: {names}.")
    return str(chosen)


def _typed(model_id: str, name: str, value: Any, hint: Any) -> Any:
    try:
        return convert(model_id, name, value, hint)
    except TypeError:
        raise TypeError(f"{name}={value!r} of {model_id} must be {_describe(hint)}.") from None


def _describe(hint: Any) -> str:
    kinds: Iterable[Any] = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return " or ".join("none" if kind is type(None) else kind.__name__ for kind in kinds)
