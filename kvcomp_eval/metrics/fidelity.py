"""Does the compressed model still say what it says with its full cache?

Free-running measures compare two finished answers. Teacher-forced ones walk along the uncompressed answer under the
compressed cache, so one early difference does not spoil everything after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvcomp_eval.metrics.rouge import rouge_l, rouge_l_coco

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FreeRunning:
    """Two answers to one document, side by side.

    Parameters
    ----------
    rouge_l : float
        F1 of package ``rouge-score``.
    rouge_l_coco : float
        The COCO variant (beta 1.2); see :mod:`kvcomp_eval.metrics.rouge`.
    exact_match : float
        1.0 if the texts are equal character by character.
    first_divergent_token : int or None
        Tokens on which both agree from the start; None if the token sequences are equal.
    agreed_share : float
        That number over the tokens of the longer answer; 1.0 if they are equal.
    length_ratio : float
        Tokens of the answer over tokens of the reference; nan for an empty reference unless both are empty.
    """

    rouge_l: float
    rouge_l_coco: float
    exact_match: float
    first_divergent_token: int | None
    agreed_share: float
    length_ratio: float

    def to_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


def free_running(
    answer: str, reference: str, answer_tokens: Sequence[int], reference_tokens: Sequence[int]
) -> FreeRunning:
    """Compare an answer with the uncompressed model's answer to the same document."""
    divergent = first_divergent_token(answer_tokens, reference_tokens)
    longer = max(len(answer_tokens), len(reference_tokens))
    is_same = answer == reference
    return FreeRunning(
        rouge_l=fidelity_of(answer, reference),
        rouge_l_coco=1.0 if is_same else rouge_l_coco(answer, reference),
        exact_match=float(is_same),
        first_divergent_token=divergent,
        agreed_share=1.0 if divergent is None else divergent / longer,
        length_ratio=_ratio(len(answer_tokens), len(reference_tokens)),
    )


def fidelity_of(answer: str, reference: str) -> float:
    """ROUGE-L F1 of an answer to the uncompressed model's; equal answers are 1.

    Two equal answers without a word have no common subsequence, but are faithful.
    """
    return 1.0 if answer == reference else rouge_l(answer, reference)


def first_divergent_token(answer: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first token that differs, or of the end of the shorter one; None if they are equal."""
    for index, (token, expected) in enumerate(zip(answer, reference, strict=False)):
        if token != expected:
            return index
    return None if len(answer) == len(reference) else min(len(answer), len(reference))


def _ratio(answer: int, reference: int) -> float:
    if reference == 0:
        return 1.0 if answer == 0 else float("nan")
    return answer / reference


@dataclass(frozen=True)
class TeacherForced:
    """How far the compressed model's predictions are from the full model's along its answer.

    The first position is predicted from the prompt before anything is dropped, so it never differs for methods that
    compress after the prompt; it is part of the answer and of the means.

    Parameters
    ----------
    kl : float
        Mean over positions of KL(full || compressed), nats.
    top1_agreement : float
        Share of positions at which both find the same token most likely.
    nll_difference : float
        Mean negative log-likelihood of the answer, compressed minus full, nats per token.
    kl_by_position : tuple of float
    """

    kl: float
    top1_agreement: float
    nll_difference: float
    kl_by_position: tuple[float, ...]


def forced_logits(
    model: Any, inputs: Mapping[str, Any], tokens: Sequence[int], generate: Callable[..., Any] | None = None
) -> Tensor:
    """Logits of one prompt along given tokens: row i predicts ``tokens[i]``.

    The tokens go through ``generate`` one by one, on whatever cache it uses: call this inside ``attach(model,
    method)`` for a compressed one. So positions and cache are exactly those of free-running generation.

    Parameters
    ----------
    model : PreTrainedModel
    inputs : mapping
        Processor outputs of a single prompt, on the model's device.
    tokens : sequence of int
        The answer, its end token included if it has one.
    generate : callable, optional
        Takes the place of ``model.generate``, with its arguments.

    Returns
    -------
    Tensor [T, V], float32
    """
    import torch
    from transformers import LogitsProcessorList

    if inputs["input_ids"].shape[0] != 1:
        raise ValueError(f"forced_logits() takes one prompt, not a batch of {inputs['input_ids'].shape[0]}.")
    if not tokens:
        raise ValueError("The answer is empty, so there is nothing to predict; leave this document out.")
    output = (generate or model.generate)(
        **inputs,
        logits_processor=LogitsProcessorList([_forcing(tokens, inputs["input_ids"].shape[1])]),
        max_new_tokens=len(tokens),
        do_sample=False,
        num_beams=1,
        output_logits=True,
        return_dict_in_generate=True,
    )
    if len(output.logits) != len(tokens):
        raise ValueError(
            f"Generation stopped after {len(output.logits)} of {len(tokens)} tokens; the answer must be cut at its "
            "first end token."
        )
    return torch.cat(list(output.logits)).float()


def _forcing(tokens: Sequence[int], prompt_length: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A logits processor, run after all others, that leaves only the next given token."""
    import torch

    def force(input_ids: Tensor, scores: Tensor) -> Tensor:
        forced = torch.full_like(scores, float("-inf"))
        forced[:, tokens[input_ids.shape[1] - prompt_length]] = 0.0
        return forced

    return force


def teacher_forced(full: Tensor, compressed: Tensor, tokens: Sequence[int]) -> TeacherForced:
    """Compare two results of :func:`forced_logits` along the same tokens.

    Parameters
    ----------
    full, compressed : Tensor [T, V]
        Logits under the full cache (method ``full``, whose kernels are those of the compressed run) and under the
        compressed one.
    tokens : sequence of int, length T
    """
    if full.shape != compressed.shape or len(full) != len(tokens):
        raise ValueError(
            f"Logits of shape {tuple(full.shape)} and {tuple(compressed.shape)} do not belong to one answer of "
            f"{len(tokens)} tokens; force both along the same tokens."
        )
    kl, agreed, nll = [], 0, 0.0
    # Row by row: a vocabulary in double precision is large.
    for expected, got, token in zip(full, compressed, tokens, strict=True):
        log_p, log_q = expected.double().log_softmax(-1), got.double().log_softmax(-1)
        kl.append(float((log_p.exp() * (log_p - log_q)).sum().clamp(min=0)))
        agreed += int(expected.argmax() == got.argmax())
        nll += float(log_p[token] - log_q[token])
    count = len(tokens)
    return TeacherForced(sum(kl) / count, agreed / count, nll / count, tuple(kl))
