"""Rate-Controlled Refresh: re-select when drift says so, as often as a budget says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from kvcomp_eval.methods.bacon import Bacon
from kvcomp_eval.methods.base import LayerPlan, LayerPrefill, WindowedMethod, check_at_least, check_choice, check_share
from kvcomp_eval.methods.snapkv import SnapKV
from kvcomp_eval.methods.window import WindowMethod
from kvcomp_eval.stores.controller import UPDATES, RateController
from kvcomp_eval.stores.drift import DriftRetrieval
from kvcomp_eval.stores.heads import HeadPlan
from kvcomp_eval.tracing import TraceFile

INITIAL: dict[str, type[WindowMethod]] = {"bacon": Bacon, "snapkv": SnapKV}
_CONTROLLER = "rcr controller"
_TRACE = "rcr trace"


@dataclass(frozen=True)
class RCR(WindowedMethod):
    """Selected prefix entries, the window, and all generated tokens; the first are chosen again on drift.

    "Drift Says When, Budget Says How Much: Rate-Controlled KV Re-selection for Long-Form Multimodal Generation".
    Drift is the attention that a step would pay to evicted prefix tokens. A layer whose drift exceeds tau re-selects;
    tau is steered so that a share ``rho`` of layer-steps does. The prompt's other keys and values wait on the host.

    Parameters
    ----------
    initial : str
        First selection: ``bacon`` or ``snapkv``.
    rank : int
        Rank of the detector; 0 scores every prefix key exactly, at the price of reading it.
    candidates : float
        Keys fetched for exact scoring, as a multiple of the entries selected.
    tau : float
        Start of the threshold; -1 refreshes always, inf never.
    rho : float
        Target rate of refreshes.
    gain : float
        Step of the controller in log tau; 0 is a fixed threshold.
    update : str
        ``layer``: the controller moves after every layer (the card's text); ``step``: once a token.
    centred : bool
        Detector around the mean key, whose logit is added back exactly.
    per_head : bool
        Trigger each KV head by its own drift instead of the layer's mean.
    branching : bool, optional
        Skip the work where nothing refreshes (same output), for which the host has to wait; default: on a CPU, which
        has nothing to wait for.
    offload : bool
        Prefix keys and values on the host.
    trace : str, optional
        Parquet file for every step's drift, threshold and refreshes (see :mod:`kvcomp_eval.tracing`).
    """

    initial: str = "bacon"
    rank: int = 8
    candidates: float = 4.0
    tau: float = 0.03
    rho: float = 0.4
    gain: float = 0.05
    update: str = "layer"
    centred: bool = False
    per_head: bool = False
    branching: bool | None = None
    offload: bool = True
    trace: str | None = None

    name = "rcr"
    paper = "Rate-Controlled Refresh"
    decoding = "re-select on drift"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("initial", self.initial, tuple(INITIAL))
        check_choice("update", self.update, UPDATES)
        check_at_least("rank", self.rank, 0)
        check_at_least("candidates", self.candidates, 1)
        check_at_least("gain", self.gain, 0)
        check_share("rho", self.rho)
        if not (self.tau > 0 or self.tau == -1):
            raise ValueError(f"tau={self.tau} must be positive, inf (never refresh), or -1 (always refresh).")
        _ = self._trace_file  # an unusable file is refused here, not after the prompts

    @cached_property
    def _selector(self) -> WindowMethod:
        return INITIAL[self.initial](window=self.window)

    @cached_property
    def _trace_file(self) -> TraceFile | None:
        return TraceFile(self.trace) if self.trace else None

    @contextmanager
    def traced(self, path: Path) -> Iterator[RCR]:
        copy = replace(self, trace=str(path))
        file = copy._trace_file
        assert file is not None
        try:
            yield copy
        finally:
            file.close()

    def select(self, prefill: LayerPrefill, entries: int) -> LayerPlan:
        window = self.window_for(self.window, prefill.length)
        prefix, selected = prefill.length - window, entries - window
        if prefill.layer == 0:
            prefill.carried[_CONTROLLER] = self._controller(prefill)
            prefill.carried[_TRACE] = self._trace_file.prompt(prefill.length) if self._trace_file else None
        plans = []
        for plan in self._selector.select(prefill, entries):
            retrieval = DriftRetrieval(
                selected=selected,
                prefix=prefix,
                candidates=min(prefix, int(self.candidates * selected)),
                rank=min(self.rank, prefill.keys.shape[-1]),
                centred=self.centred,
                per_head=self.per_head,
                branching=prefill.keys.device.type == "cpu" if self.branching is None else self.branching,
                num_kv_heads=prefill.num_kv_heads,
                offload=self.offload,
                layer=prefill.layer,
                initial=plan.kept[:selected],
                controller=prefill.carried[_CONTROLLER],
                probe=prefill.carried[_TRACE],
            )
            plans.append(HeadPlan(plan.kept[selected:], retrieval))
        return tuple(plans)

    def _controller(self, prefill: LayerPrefill) -> RateController:
        return RateController(
            tau=self.tau,
            rho=self.rho,
            gain=self.gain,
            num_layers=prefill.num_layers,
            update=self.update,
            device=prefill.keys.device,
        )


@dataclass(frozen=True)
class Exact(RCR):
    """RCR's layout, re-selected from exact logits of the whole prefix at every step: the analysis' upper reference.

    It reads every prefix key at every step, and is not a strict upper bound on fidelity.
    """

    rank: int = 0
    tau: float = -1.0
    gain: float = 0.0

    name = "exact"
    paper = "Rate-Controlled Refresh (oracle)"
    kind = "reference"
    decoding = "re-select every step"
