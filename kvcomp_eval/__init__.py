"""KV-cache compression for multimodal models, on stock transformers and lmms-eval."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcomp_eval.methods.full import Full
    from kvcomp_eval.methods.hybridkv import HybridKV
    from kvcomp_eval.methods.registry import make_method, method_names
    from kvcomp_eval.methods.snapkv import SnapKV
    from kvcomp_eval.session import attach

__version__ = "0.1.0"
__all__ = ["Full", "HybridKV", "SnapKV", "__version__", "attach", "make_method", "method_names"]

_HOMES = {
    "attach": "kvcomp_eval.session",
    "Full": "kvcomp_eval.methods.full",
    "HybridKV": "kvcomp_eval.methods.hybridkv",
    "SnapKV": "kvcomp_eval.methods.snapkv",
    "make_method": "kvcomp_eval.methods.registry",
    "method_names": "kvcomp_eval.methods.registry",
}


def __getattr__(name: str) -> Any:
    """Load public names on first use: lmms-eval's entry point must not pay for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
