"""RazorAttention: heads that find repetitions stay whole; of the others' evicted tokens one mean stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvcomp_eval.compat import visual_token_ids
from kvcomp_eval.methods.base import LayerPrefill, Method, check_at_least, check_share
from kvcomp_eval.methods.full import Full
from kvcomp_eval.methods.headwise import HeadObservation, HeadwiseMethod
from kvcomp_eval.scoring.echo import echo_scores

if TYPE_CHECKING:
    from kvcomp_eval.cache import KVCache

_ECHO = "echo"


@dataclass(frozen=True)
class RazorAttention(HeadwiseMethod):
    """Retrieval heads by their echo and induction scores on repeated random tokens, once per model.

    Tang et al., "RazorAttention: Efficient KV Cache Compression Through Retrieval Heads", ICLR 2025, arXiv 2407.15891.
    The paper keeps 14 % of the heads for induction and 1 % for echo; here the budget says how many, in the same
    proportion. A KV head has the best score of its query heads. The paper keeps max(4000, N / 5) recent tokens, which
    would be the whole prompt of an image.

    Parameters
    ----------
    compensation : bool
        One entry more per head that is not whole: the mean of its evicted keys and values, weighted by their number.
    echo_share : float
        Of the whole heads, those chosen by echo.
    period : int
        Random tokens that are repeated; fewer where the model's positions do not reach.
    repeats : int
    seed : int
    """

    compensation: bool = True
    echo_share: float = 1 / 15
    period: int = 2500
    repeats: int = 4
    seed: int = 0

    name = "razorattention"
    paper = "arXiv 2407.15891"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("echo_share", self.echo_share)
        check_at_least("period", self.period, 2)
        check_at_least("repeats", self.repeats, 2)

    @property
    def _compensates(self) -> bool:
        return self.compensation

    def calibrated(self, config: Any, read: Callable[[Method, Tensor], KVCache]) -> Method:
        """This method with the model's echo and induction scores."""
        text = config.get_text_config(decoder=True)
        period = min(self.period, text.max_position_embeddings // self.repeats)
        allowed = torch.ones(text.vocab_size)
        allowed[list(visual_token_ids(config))] = 0
        generator = torch.Generator().manual_seed(self.seed)
        tokens = torch.multinomial(allowed, period, replacement=True, generator=generator).repeat(self.repeats)
        cache = read(EchoProbe(period=period), tokens[None])
        return CalibratedRazor(**self.parameters(), measured=torch.stack(cache.details[_ECHO], dim=1))

    def observe(self, prefill: LayerPrefill) -> HeadObservation:
        raise RuntimeError("razorattention has to measure the model first; use it inside attach(model, method).")

    def ranked(self, scores: Tensor) -> list[int]:
        """Induction first; echo takes its share at every number of whole heads."""
        echo, induction = (row.argsort(descending=True, stable=True).tolist() for row in scores)
        order: list[int] = []
        by_echo = 0
        while len(order) < len(induction):
            from_echo = by_echo < self.echo_share * (len(order) + 1) - 0.5
            by_echo += from_echo
            order.append(next(head for head in (echo if from_echo else induction) if head not in order))
        return order


@dataclass(frozen=True)
class CalibratedRazor(RazorAttention):
    """The method once it knows the model's echo and induction scores, [2, L, Hkv]."""

    measured: Tensor = field(default_factory=lambda: torch.empty(2, 0, 0), repr=False, compare=False)

    def observe(self, prefill: LayerPrefill) -> HeadObservation:
        return HeadObservation(self.measured[:, prefill.layer], prefill.length)


@dataclass(frozen=True)
class EchoProbe(Full):
    """Keeps everything, and scores the heads of a text that repeats after ``period`` tokens."""

    period: int = 2

    name = "echo_probe"

    def observe(self, prefill: LayerPrefill) -> Any:
        scores = echo_scores(prefill.queries, prefill.keys, self.period, prefill.scaling)
        per_kv_head = scores.unflatten(1, (prefill.num_kv_heads, -1)).amax(-1)
        return super().observe(prefill), per_kv_head

    def plan(self, observations: Any, details: dict[str, Any]) -> Any:
        details.setdefault(_ECHO, []).extend(scores for _, scores in observations)
        return [plan for plan, _ in observations]
