"""What a compression method is: observe each layer's prompt, then plan what every KV head keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from kvcomp_eval.budgets.uniform import effective_window, entries_per_head
from kvcomp_eval.inputs import AttentionInputs
from kvcomp_eval.stores.heads import HeadPlan

#: One layer of one sample: a plan for each KV head.
LayerPlan = tuple[HeadPlan, ...]


@dataclass(frozen=True)
class LayerPrefill:
    """One layer's prompt as a method sees it: one sample, real tokens only.

    Parameters
    ----------
    layer, num_layers : int
    queries : Tensor [Hq, N, D]
        Post-RoPE. Query head h belongs to KV head ``h // (Hq // Hkv)``.
    keys, values : Tensor [Hkv, N, D]
    visual : Tensor [N], bool
    scaling : float
        Logit scale of the model.
    carried : dict
        What a method wants to remember from layer to layer of this prompt; empty at the first layer.
    inputs : AttentionInputs, optional
        Of the same tokens, for methods with ``needs_inputs``.
    sample : int
        Which prompt of the batch this is.
    """

    layer: int
    num_layers: int
    queries: Tensor
    keys: Tensor
    values: Tensor
    visual: Tensor
    scaling: float
    carried: dict[str, Any] = field(default_factory=dict)
    inputs: AttentionInputs | None = None
    sample: int = 0

    @property
    def length(self) -> int:
        return self.keys.shape[1]

    @property
    def num_kv_heads(self) -> int:
        return self.keys.shape[0]


@dataclass(frozen=True)
class Method(ABC):
    """Base of every compression method: a frozen set of hyper-parameters and two functions.

    Parameters
    ----------
    budget_ratio : float, optional
        Fraction of the real prompt tokens that each KV head keeps, in (0, 1].
    budget_entries : int, optional
        The same as an absolute number of entries. Give one of the two; with neither, everything is kept.
    """

    budget_ratio: float | None = None
    budget_entries: int | None = None

    #: Name on the command line.
    name: ClassVar[str]
    #: Citation.
    paper: ClassVar[str]
    #: ``method``, or ``reference`` for floors, oracles and the full cache.
    kind: ClassVar[Literal["method", "reference"]] = "method"
    #: What the budget differs by.
    varies: ClassVar[str] = "-"
    #: What happens to evicted entries at prefill.
    merges: ClassVar[bool] = False
    #: What a decode step does beside adding its token.
    decoding: ClassVar[str] = "-"
    #: ``layer``: each layer is packed as soon as it ran; ``global``: all after the last one.
    scope: ClassVar[Literal["layer", "global"]] = "layer"
    #: The attention modules' inputs are handed over, prompt (``LayerPrefill.inputs``) and decode steps (`asking`).
    needs_inputs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.budget_ratio is not None and self.budget_entries is not None:
            raise ValueError(
                f"budget_ratio={self.budget_ratio} and budget_entries={self.budget_entries} exclude each other; "
                "give one of them."
            )
        if self.budget_ratio is not None and not 0 < self.budget_ratio <= 1:
            raise ValueError(f"budget_ratio={self.budget_ratio} must lie in (0, 1]; 0.1 keeps 10 % of the prompt.")
        if self.budget_entries is not None and self.budget_entries < 1:
            raise ValueError(f"budget_entries={self.budget_entries} must be at least 1 entry per KV head.")

    @abstractmethod
    def observe(self, prefill: LayerPrefill) -> Any:
        """Look at one layer's prompt; called once per layer and sample, in layer order.

        Whatever it returns is handed to :meth:`plan`; it must not hold on to the keys and values.
        """

    @abstractmethod
    def plan(self, observations: Sequence[Any], details: dict[str, Any]) -> list[LayerPlan]:
        """Decide what is kept, one plan per observed layer.

        Parameters
        ----------
        observations : sequence
            Of one sample: the layer just observed (``scope="layer"``) or all layers (``"global"``).
        details : dict
            Facts for :class:`~kvcomp_eval.report.CacheReport`, to be added to.
        """

    def prepared(self, rehearse: Callable[..., Any]) -> Method:
        """The method to use for the prompt at hand.

        Parameters
        ----------
        rehearse : callable
            ``rehearse(method, steps=None)`` answers the prompt with another method first and returns the finished
            cache. ``steps`` decodes so many tokens of every sample, greedily and past the end of an answer.
        """
        return self

    def calibrated(self, config: Any, read: Callable[[Method, Tensor], Any]) -> Method:
        """The method to use for this model, asked for once by ``attach``.

        Parameters
        ----------
        config : PretrainedConfig
        read : callable
            ``read(method, input_ids)`` runs the model over text [1, N] and returns the finished cache.
        """
        return self

    @contextmanager
    def traced(self, path: Path) -> Iterator[Method]:
        """The method to use inside a ``with`` block whose decode steps go into a Parquet file, complete after it.

        No file is written by methods that have nothing to tell, such as all that choose once.
        """
        yield self

    def asking(self, previous: AttentionInputs | None, current: AttentionInputs) -> Tensor | None:
        """Queries [B, Hq, q, D] by which a layer's entries are retrieved at a decode step; None: its own.

        Parameters
        ----------
        previous : AttentionInputs, optional
            Of the layer before, in the same pass; None at the first layer.
        current : AttentionInputs
        """
        return None

    def parameters(self) -> dict[str, Any]:
        """Hyper-parameters by name, for logs and reports; what a method has measured (``repr=False``) is none."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.repr}

    def entries(self, prompt_length: int, window: int) -> int:
        """Prompt entries per KV head under the common convention; see :func:`entries_per_head`."""
        return entries_per_head(prompt_length, self.budget_ratio, self.budget_entries, window)

    def held_entries(self, prompt_length: int, num_layers: int) -> float:
        """Prompt entries that a KV head holds, mean over heads and layers: those of the budget.

        A method that departs from the budget by design declares here by how much; a comparison checks what was held
        against it, and says so of the row.
        """
        return self.entries(prompt_length, self.least_window)

    @property
    def least_window(self) -> int:
        """Window by which tiny ratios are raised; that of the window methods, so that all hold equal bytes."""
        return 32

    def window_for(self, window: int, prompt_length: int) -> int:
        """The window that fits the budget of this prompt; see :func:`effective_window`."""
        return effective_window(window, self.entries(prompt_length, window), prompt_length)


@dataclass(frozen=True)
class LayerMethod(Method):
    """A method that chooses once, layer by layer; a prompt that fits into its budget is kept whole."""

    @abstractmethod
    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        """What each KV head keeps when ``entries``, the mean per head, is less than the prompt."""

    def observe(self, prefill: LayerPrefill) -> LayerPlan:
        entries = self.entries(prefill.length, self.least_window)
        return keep_everything(prefill) if entries >= prefill.length else self.select(prefill, entries)

    def plan(self, observations: Sequence[LayerPlan], details: dict[str, Any]) -> list[LayerPlan]:
        return list(observations)


@dataclass(frozen=True)
class WindowedMethod(LayerMethod):
    """A method that always keeps the end of the prompt.

    Parameters
    ----------
    window : int
        Last prompt tokens, always kept. 32 is what the multimodal follow-ups of SnapKV use (SparseMM, MixKV, BACON).
    """

    window: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("window", self.window, 1)

    @property
    def least_window(self) -> int:
        return self.window


def keep_everything(prefill: LayerPrefill) -> LayerPlan:
    """The plan of a prompt that fits into its budget."""
    every = torch.arange(prefill.length, device=prefill.keys.device)
    return (HeadPlan(every),) * prefill.num_kv_heads


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ValueError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not known; use one of {', '.join(allowed)}.")


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` lies between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value} must lie between 0 and 1.")


def check_at_least(name: str, value: float, least: float) -> None:
    """Raise ValueError unless ``value >= least``."""
    if not value >= least:  # also refuses nan
        raise ValueError(f"{name}={value} must be at least {least}.")
