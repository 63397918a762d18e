"""Teacher-forced fidelity in a comparison: under each cell's method along the uncompressed model's answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from lmms_eval.api.instance import Instance
from torch import Tensor

from kvcomp_eval.compare.record import AnswerKey, key_of
from kvcomp_eval.methods.registry import make_method
from kvcomp_eval.metrics.fidelity import forced_logits, teacher_forced
from kvcomp_eval.model_wrappers.references import named
from kvcomp_eval.session import attach

#: Logits kept for the next method, in bytes: 256 tokens of a vocabulary of 152k take 150 MiB.
LOGITS_CACHE = 2**30

#: Every method walks along the same answer, so it is not drawn at random, whatever the task says.
_GREEDY = {"do_sample": False, "num_beams": 1, "temperature": None, "top_p": None, "top_k": None}


class Uncompressed(NamedTuple):
    """Tokens of the full cache's answer to one document, and its logits along them [T, V]."""

    tokens: list[int]
    logits: Tensor


class ForcedWalks:
    """Walks along the uncompressed answers of the first documents of each cell.

    Answers and logits of the full cache are made here, greedily and one document at a time: so they do not depend on
    batches, on sampling, or on which process ran the uncompressed cell. Where a task decodes greedily in batches of
    one, these are the answers in the journal. They are kept for the methods that follow on the same task, as far as
    ``LOGITS_CACHE`` reaches; others are made anew, which costs time only.

    Parameters
    ----------
    wrapper : ComparedModel
    documents : int
        How many; chosen by their number, so that several processes choose the same ones.
    """

    def __init__(self, wrapper: Any, documents: int) -> None:
        self._wrapper = wrapper
        self._documents = documents
        self._kept: dict[AnswerKey, Uncompressed] = {}

    def complete(self, requests: Sequence[Instance]) -> None:
        """Walk along what the cell's record lacks; documents with an empty answer are left out."""
        record = self._wrapper.record
        for request in requests:
            if key_of(request)[1] < self._documents and key_of(request) not in record.forced:
                with named([request]):
                    self._walk(request)

    def _walk(self, request: Instance) -> None:
        wrapper = self._wrapper
        full = self._uncompressed(request)
        if not wrapper.tokenizer.decode(full.tokens, skip_special_tokens=True):
            return
        with attach(wrapper.model, wrapper.method, prefill=wrapper.arguments.attn):
            generate = partial(wrapper.model.generate, **_ends(wrapper.settings(request)))
            logits = forced_logits(wrapper.model, wrapper.inputs_alone(request), full.tokens, generate)
        found = teacher_forced(full.logits, logits.cpu(), full.tokens)
        figures = {"kl": found.kl, "top1_agreement": found.top1_agreement, "nll_difference": found.nll_difference}
        task, doc_id = key_of(request)
        wrapper.record.add_forced({"task": task, "doc_id": doc_id, "length": len(full.tokens), **figures})

    def _uncompressed(self, request: Instance) -> Uncompressed:
        key = key_of(request)
        if key not in self._kept:
            self._kept = {other: found for other, found in self._kept.items() if other[0] == key[0]}
            made = self._answer(request)
            if sum(found.logits.nbytes for found in [made, *self._kept.values()]) > LOGITS_CACHE:
                return made
            self._kept[key] = made
        return self._kept[key]

    def _answer(self, request: Instance) -> Uncompressed:
        wrapper = self._wrapper
        inputs = wrapper.inputs_alone(request)
        with attach(wrapper.model, make_method("full"), prefill=wrapper.arguments.attn):
            output = wrapper.model.generate(
                **inputs, **wrapper.settings(request) | _GREEDY, output_logits=True, return_dict_in_generate=True
            )
        tokens = output.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        return Uncompressed(tokens, torch.cat(list(output.logits)).float().cpu())


def _ends(settings: dict[str, Any]) -> dict[str, Any]:
    """Where an answer ends, as the answers in the journal had it."""
    return {name: settings[name] for name in ("eos_token_id", "pad_token_id")}
