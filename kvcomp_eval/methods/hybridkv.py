"""HybridKV: prune the heads that look at few tokens, retrieve for the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from kvcomp_eval.budgets.head_types import (
    PADDINGS,
    ROUNDINGS,
    TOTALS,
    ChunkGrid,
    HeadTypeBudgets,
    HeadTypeRule,
)
from kvcomp_eval.methods.base import (
    LayerPlan,
    LayerPrefill,
    Method,
    check_at_least,
    check_choice,
    check_share,
)
from kvcomp_eval.methods.rcr import RCR
from kvcomp_eval.methods.rehearsal import Rehearsal
from kvcomp_eval.scoring.pooling import check_pooling, pool_scores
from kvcomp_eval.scoring.text_centric import TEXT_ROWS, text_centric_sparsity, text_rows
from kvcomp_eval.scoring.window import window_scores
from kvcomp_eval.selection import text_prior_positions, top_positions
from kvcomp_eval.stores.chunks import GROUP_RULES, INDEXES, ChunkSpec
from kvcomp_eval.stores.controller import RateController
from kvcomp_eval.stores.drift import DriftRetrieval
from kvcomp_eval.stores.heads import HeadPlan

CLASSIFIERS = ("sparsity", "drift")
GROUP_REDUCTIONS = {
    "mean": lambda scores: scores.mean(1),
    "min": lambda scores: scores.amin(1),
    "max": lambda scores: scores.amax(1),
}


@dataclass(frozen=True)
class HeadObservation:
    """What one layer tells: its heads' sparsity, and the window's attention to each token.

    Parameters
    ----------
    sparsity : Tensor [Hkv]
    scores : Tensor [Hkv, N]
    visual : Tensor [N]
    text_queries : int
    drift : Tensor [Hkv], optional
        Share of attention that the first decode steps paid to what a static head would evict.
    """

    sparsity: Tensor
    scores: Tensor
    visual: Tensor
    text_queries: int
    drift: Tensor | None = None


@dataclass(frozen=True)
class HybridKV(Method):
    """Static heads keep window, text and salient visual tokens; dynamic heads retrieve chunks per step.

    Zeng et al., "HybridKV", arXiv 2604.05887. A head is static when its text queries put at least ``theta``
    of their attention on the top 5 % of the prompt (Eq. 2-3). The budget is split by head type (Eq. 4) and by
    head (Eq. 5). Classes and budgets need every head, so the cache is packed after the last layer.

    Parameters
    ----------
    theta : float
        Static iff sparsity (or 1 - drift) >= theta. ``-inf``: all static, ``inf``: all dynamic (Table 4).
    theta_quantile : float, optional
        Instead of ``theta``: this quantile over all heads of the prompt at hand. (The paper tunes an absolute
        value on a validation set: take it from ``CacheReport.details["sparsity"]`` and pass it as ``theta``.)
    classify : str
        What ``theta`` is compared with. ``sparsity``: S of Eq. 3 (the paper). ``drift``: 1 - drift, the share of
        attention that stays, over the first decode steps, on what the head would keep if it were static at the mean
        budget; budgets still follow S. To be reported as a variant: the steps are rehearsed with the full cache,
        which costs a second prefill and ``probe_steps`` tokens per prompt (they count as prefill time, see
        ``CacheReport.details["rehearsal"]``) and holds the full cache, as the prefill does anyway.
    probe_steps : int
        Decode steps of that measurement.
    r : float
        Share coefficient of dynamic heads; 1 is the same for both types (appendix D: 0.75).
    alpha : float
        Uniform part of the static budgets; 1 turns head-level allocation off (Table 5). Not given in the paper.
    window : int
        Observation window, always kept. Not given in the paper; 32 as in SparseMM.
    chunk_size : int
        Tokens per retrieved chunk (appendix A).
    top_k_ratio : float
        k of Eq. 3 as a fraction of the prompt (Eq. 1 uses 5 %).
    text_rows : str
        Which text queries score a head: ``after_visual``, ``all`` (literal), ``last_segment``.
    group_reduce : str
        One sparsity per KV head from its query heads: ``mean``, ``min``, ``max``.
    kernel : int
        Pooling of the window scores; Eq. 7 has none.
    padding : str
        Dynamic budget to a power of two: ``nearest`` (in the exponent), ``nearest_linear``, ``next``, ``prev``,
        ``none``.
    total : str
        ``conserve``: what padding takes or leaves goes to the static heads; ``literal``: the total floats.
    rounding : str
        Static budgets: ``exact`` (sums to the total) or ``ceil`` (Eq. 5 to the letter).
    count_window : bool
        The dynamic budget includes the window, which always stays; False: chunks cover the whole prompt and only
        what does not fill one stays (the literal reading).
    literal_r : bool
        Keep ``r`` even without a static head to take the rest.
    index : str
        Chunk digest: ``mean``, ``minmax`` (Quest), ``cuboid`` (ArkVale).
    chunk_score : str
        Reduction over the GQA group: ``max_softmax``, ``mean_softmax``, ``mean_logit`` (literal).
    allocation : str
        ``global`` (the paper) or ``layer``: each layer gets an equal total and is packed at once, which lowers
        peak memory; a variant, to be reported as such.
    refresh : str
        ``step``: dynamic heads retrieve chunks at every step (the paper); ``rate``: they hold as many single entries
        and re-select on drift, at the rate ``rho`` (RCR's controller and detector; beyond both papers).
    rho : float
        Target share of refreshes with ``refresh=rate``.
    offload : str or bool
        Chunks' keys and values on the host. ``auto``: yes; on a CPU run they are counted as host memory.
    """

    theta: float = 0.9
    theta_quantile: float | None = None
    classify: str = "sparsity"
    probe_steps: int = 8
    r: float = 0.75
    alpha: float = 0.5
    window: int = 32
    chunk_size: int = 8
    top_k_ratio: float = 0.05
    text_rows: str = "after_visual"
    group_reduce: str = "mean"
    kernel: int = 1
    padding: str = "nearest"
    total: str = "conserve"
    rounding: str = "exact"
    count_window: bool = True
    literal_r: bool = False
    index: str = "mean"
    chunk_score: str = "max_softmax"
    allocation: str = "global"
    refresh: str = "step"
    rho: float = 0.4
    offload: str | bool = "auto"

    name: ClassVar[str] = "hybridkv"
    paper: ClassVar[str] = "arXiv 2604.05887"
    varies = "layer, head"
    decoding = "retrieve chunks"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("window", self.window, 1)
        check_at_least("chunk_size", self.chunk_size, 1)
        check_at_least("r", self.r, 0)
        if math.isnan(self.theta):
            raise ValueError("theta=nan would make every head dynamic; give a number, -inf or inf.")
        check_pooling(self.kernel, "avg")
        for name, low, high in (("alpha", 0, 1), ("top_k_ratio", 0, 1), ("theta_quantile", 0, 1)):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{name}={value} must lie between {low} and {high}.")
        check_choice("classify", self.classify, CLASSIFIERS)
        check_at_least("probe_steps", self.probe_steps, 1)
        check_choice("text_rows", self.text_rows, TEXT_ROWS)
        check_choice("group_reduce", self.group_reduce, tuple(GROUP_REDUCTIONS))
        check_choice("padding", self.padding, PADDINGS)
        check_choice("total", self.total, TOTALS)
        check_choice("rounding", self.rounding, ROUNDINGS)
        check_choice("index", self.index, INDEXES)
        check_choice("chunk_score", self.chunk_score, GROUP_RULES)
        check_choice("refresh", self.refresh, ("step", "rate"))
        check_share("rho", self.rho)
        check_choice("allocation", self.allocation, ("global", "layer"))
        if self.offload not in ("auto", True, False):
            raise ValueError(f"offload={self.offload!r} is not known; use auto, true or false.")

    @property
    def scope(self) -> Literal["layer", "global"]:  # type: ignore[override]
        return "layer" if self.allocation == "layer" else "global"

    @property
    def least_window(self) -> int:
        return self.window

    def prepared(self, rehearse: Callable[..., Any]) -> Method:
        """With ``classify=drift``: this method with the drift of the prompts at hand."""
        if self.classify == "sparsity":
            return self
        return RehearsedHybridKV(**self.parameters(), rehearsal=Rehearsal.run(rehearse, self.probe_steps))

    def observe(self, prefill: LayerPrefill) -> HeadObservation:
        window = self.window_for(self.window, prefill.length)
        rows = text_rows(prefill.visual, self.text_rows, window)
        sparsity = text_centric_sparsity(prefill.queries, prefill.keys, rows, prefill.scaling, self.top_k_ratio)
        per_kv_head = GROUP_REDUCTIONS[self.group_reduce](sparsity.unflatten(0, (prefill.num_kv_heads, -1)))
        window_attention = window_scores(prefill.queries, prefill.keys, window, prefill.scaling)
        scores = pool_scores(window_attention, self.kernel)
        return HeadObservation(per_kv_head, scores, prefill.visual, len(rows), self._drift(prefill, scores))

    def _drift(self, prefill: LayerPrefill, scores: Tensor) -> Tensor | None:
        if self.classify == "drift":
            raise RuntimeError("classify=drift has to rehearse the prompt; use model.generate() inside attach().")
        return None

    def plan(self, observations: Sequence[HeadObservation], details: dict[str, Any]) -> list[LayerPlan]:
        length = len(observations[0].visual)
        sparsity = torch.cat([layer.sparsity for layer in observations]).tolist()
        drifts = [layer.drift for layer in observations if layer.drift is not None]
        drift = torch.cat(drifts).tolist() if drifts else []
        budgets, grid, theta = self._budgets(sparsity, [1 - value for value in drift] or sparsity, length)
        details.setdefault("sparsity", []).append(sparsity)
        if drift:
            details.setdefault("drift", []).append(drift)
        details.setdefault("static", []).append(list(budgets.static))
        details.setdefault("text_queries", []).append(observations[0].text_queries)
        details.setdefault("budgets", []).append(
            {
                "theta": theta,
                "dynamic_heads": budgets.static.count(False),
                "chunks": budgets.chunks,
                "padded": budgets.padded,
                "notes": list(budgets.notes),
            }
        )
        heads_per_layer = len(observations[0].sparsity)
        controller = self._controller(observations)
        plans = []
        for i, layer in enumerate(observations):
            heads = range(i * heads_per_layer, (i + 1) * heads_per_layer)
            plan = self._layer_plan(layer, budgets, heads, grid)
            plans.append(plan if controller is None else self._by_rate(plan, layer, i, controller))
        return plans

    def _budgets(
        self, sparsity: list[float], steadiness: list[float], length: int
    ) -> tuple[HeadTypeBudgets, ChunkGrid, float]:
        """Total entries of these heads, their classes (by steadiness) and budgets (by sparsity)."""
        heads = len(sparsity)
        total = heads * self.entries(length, self.window)
        if self.budget_ratio is not None:
            # One model-wide floor instead of a rounding per head (section 3.2), above the same least budget.
            least = min(self.window + 1, length)
            total = min(max(math.floor(self.budget_ratio * length * heads + 1e-9), heads * least), heads * length)
        window = self.window_for(self.window, length)
        theta = self.theta
        if self.theta_quantile is not None:
            theta = float(torch.tensor(steadiness, dtype=torch.float64).quantile(self.theta_quantile))
        static = tuple(score >= theta for score in steadiness)
        grid = ChunkGrid(length, window if self.count_window else 0, self.chunk_size)
        if total == heads * length:
            return HeadTypeBudgets(static, (length,) * heads, grid.num_chunks, length), grid, theta
        rule = HeadTypeRule(
            r=self.r,
            alpha=self.alpha,
            padding=self.padding,
            total=self.total,
            rounding=self.rounding,
            literal_r=self.literal_r,
        )
        return rule.allocate(sparsity, static, total, grid, window), grid, theta

    def _layer_plan(self, layer: HeadObservation, budgets: HeadTypeBudgets, heads: range, grid: ChunkGrid) -> LayerPlan:
        length, device = grid.prompt_length, layer.visual.device
        spec = ChunkSpec(
            num_chunks=grid.num_chunks,
            retrieved=budgets.chunks,
            chunk_size=self.chunk_size,
            index=self.index,
            group_rule=self.chunk_score,
            offload=self.offload is not False,
        )
        retrieves = 0 < budgets.chunks < grid.num_chunks
        plans = []
        for scores, head in zip(layer.scores, heads, strict=True):
            entries = budgets.entries[head]
            if budgets.static[head] or entries >= length:
                kept = text_prior_positions(scores, layer.visual, entries, self.window_for(self.window, length))
                plans.append(HeadPlan(kept))
            else:
                tail = torch.arange(length - grid.tail, length, device=device)
                plans.append(HeadPlan(tail, spec if retrieves else None))
        return tuple(plans)

    def _controller(self, observations: Sequence[HeadObservation]) -> RateController | None:
        """One threshold for all dynamic heads of a prompt."""
        if self.refresh == "step":
            return None
        return RateController(
            tau=RCR.tau,
            rho=self.rho,
            gain=RCR.gain,
            num_layers=len(observations),
            update="layer",
            device=observations[0].visual.device,
        )

    def _by_rate(self, plan: LayerPlan, layer: HeadObservation, index: int, controller: RateController) -> LayerPlan:
        """The plan with chunk retrieval replaced by as many entries that are re-selected on drift."""
        dynamic = [head for head, kept in enumerate(plan) if kept.retrieval is not None]
        heads = list(plan)
        for head in dynamic:
            spec, tail = plan[head].retrieval, plan[head].kept
            assert isinstance(spec, ChunkSpec)
            retrieval = DriftRetrieval(
                selected=spec.filled,
                prefix=spec.covered,
                candidates=min(spec.covered, int(RCR.candidates * spec.filled)),
                rank=RCR.rank,
                centred=False,
                per_head=True,
                branching=False,
                num_kv_heads=len(dynamic),
                offload=spec.offload,
                layer=index,
                initial=top_positions(layer.scores[head, : spec.covered], spec.filled),
                controller=controller,
            )
            heads[head] = HeadPlan(tail, retrieval)
        return tuple(heads)


@dataclass(frozen=True)
class RehearsedHybridKV(HybridKV):
    """The method once it has seen the first decode steps of the prompts at hand."""

    rehearsal: Rehearsal = field(default_factory=lambda: Rehearsal((), {}), repr=False, compare=False)

    def plan(self, observations: Sequence[HeadObservation], details: dict[str, Any]) -> list[LayerPlan]:
        details["rehearsal"] = self.rehearsal.costs
        return super().plan(observations, details)

    def _drift(self, prefill: LayerPrefill, scores: Tensor) -> Tensor:
        window = self.window_for(self.window, prefill.length)
        entries = self.entries(prefill.length, self.window)
        kept = [text_prior_positions(head, prefill.visual, entries, window) for head in scores]
        return self.rehearsal.drift(prefill.layer, prefill.sample, kept)
