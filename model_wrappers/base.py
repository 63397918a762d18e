"""The wrapper that all families share: requests in, compressed answers out."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.model_utils.gen_metrics import log_metrics
from lmms_eval.protocol import ChatMessages
from lmms_eval.utils import Collator
from loguru import logger
from tqdm import tqdm
from transformers import AutoProcessor

from kvcomp_eval.model_wrappers.arguments import ONLY, Arguments, parse_arguments
from kvcomp_eval.model_wrappers.generation import cut, generate_arguments, stop_strings
from kvcomp_eval.model_wrappers.journal import Journal, RunStatistics
from kvcomp_eval.model_wrappers.loading import (
    checkpoint_folder,
    dtype_for,
    log_versions,
    make_accelerator,
    model_class,
    placement,
    process_ranks,
)
from kvcomp_eval.model_wrappers.messages import conversation
from kvcomp_eval.model_wrappers.references import References, named
from kvcomp_eval.session import attach

#: lmms-eval evens out the processes of a run with copies of requests, marked in their metadata under this key.
PADDING = "__padding_only__"


class Generated(NamedTuple):
    """Answers of one ``generate`` call: tokens up to the end token, texts, lengths of the prompts."""

    rows: list[list[int]]
    texts: list[str]
    prompt_tokens: list[int]
    seconds: float


class ChatWrapper(lmms):
    """A chat model of lmms-eval whose ``generate`` runs on a compressed KV cache.

    A family fills in the class variables and :meth:`prepare`; the classes of the model ids set ``fixed_method``.
    """

    is_simple = False

    family: ClassVar[str]
    arguments_class: ClassVar[type[Arguments]]
    #: ``model_type`` of a checkpoint -> class in transformers.
    model_classes: ClassVar[dict[str, str]]
    #: Precision and device map of lmms-eval's wrapper on CUDA.
    stock_dtype: ClassVar[str]
    stock_device_map: ClassVar[str]
    #: Default length of an answer, and sampling settings that are switched off unless given.
    max_new_tokens: ClassVar[int]
    explicit_none: ClassVar[tuple[str, ...]] = ("temperature", "top_p", "top_k")
    #: Stop strings that do not end an answer: lmms-eval adds "\n\n" to tasks that ask for none.
    ignored_stops: ClassVar[tuple[str, ...]] = ("\n\n",)
    #: Method of the model id; None: named by ``method=``.
    fixed_method: ClassVar[str | None] = None

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.arguments, self.method = parse_arguments(
            type(self).__name__, self.arguments_class, self.fixed_method, given
        )
        arguments = self.arguments
        folder = checkpoint_folder(arguments.pretrained, self.family)
        architecture = model_class(folder, arguments, self.family, self.model_classes)
        self.accelerator = make_accelerator()
        self._rank, self._world_size, local_rank = process_ranks()
        self._device, device_map = placement(arguments, self.stock_device_map, self._world_size, local_rank)
        self.journal = Journal(arguments.report_path, self._rank)
        self.references = References(self)
        source = {"revision": arguments.revision, "trust_remote_code": arguments.trust_remote_code}
        self._model = architecture.from_pretrained(
            folder,
            dtype=dtype_for(arguments, self.stock_dtype, self._device),
            device_map=device_map,
            attn_implementation=arguments.attn,
            **source,
        ).eval()
        self.processor = AutoProcessor.from_pretrained(folder, **self.processor_arguments(), **source)
        self.processor.tokenizer.padding_side = "left"
        if self._rank == 0:
            log_versions()
            logger.info(f"{type(self).__name__}: {self.method}")
            if self.method.name != "full" and arguments_without_budget(self.method):
                logger.warning("Neither budget_ratio nor budget_entries is given: the whole prompt is kept.")

    @abstractmethod
    def prepare(self, chats: Sequence[ChatMessages]) -> Any:
        """Turn one conversation per row into left-padded processor inputs, on the CPU."""

    def processor_arguments(self) -> dict[str, Any]:
        """Keyword arguments with which the processor is loaded."""
        return {}

    def sort_key(self, request: Instance) -> Any:
        """Order of requests with equal generation arguments; ties keep the task's order."""
        return request.args[0]

    @property
    def model(self) -> Any:
        return self._model

    @property
    def config(self) -> Any:
        return self._model.config

    @property
    def tokenizer(self) -> Any:
        return self.processor.tokenizer

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def batch_size(self) -> int:
        return self.arguments.batch_size

    @property
    def device(self) -> torch.device:
        return self._device

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """Answer every request; results are in the order of the requests."""
        real = [request for request in requests if not request.metadata.get(PADDING)]
        order = Collator(real, self.sort_key, group_fn=lambda request: request.args[2], grouping=True)
        batches = list(order.get_batched(n=self.batch_size))
        statistics = RunStatistics()
        answers: list[GenerationResult] = []
        self.references.complete(batches)
        if self.arguments.reference == ONLY:
            answers = [self.references.answer(request) for batch in batches for request in batch]
        else:
            with attach(self.model, self.method, prefill=self.arguments.attn) as session:
                for batch in tqdm(batches, disable=self.rank != 0, desc="Model Responding"):
                    with named(batch):
                        answers += self._answer(batch, session, statistics)
        self._log(statistics)
        return _with_padding(requests, order.get_original(answers) if real else [])

    def loglikelihood(self, requests: list[Instance]) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__} generates answers only; task {requests[0].task_name} needs log-likelihoods, "
            "which never read a compressed cache."
        )

    def generate_until_multi_round(self, requests: list[Instance]) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__} answers one prompt at a time; task {requests[0].task_name} needs several rounds."
        )

    def settings(self, request: Instance) -> dict[str, Any]:
        """Arguments of ``model.generate`` but for its inputs."""
        return {
            "eos_token_id": self.eot_token_id,
            "pad_token_id": self._pad_token_id(),
            **generate_arguments(request.args[2], self.max_new_tokens, self.explicit_none),
        }

    def _answer(self, batch: list[Instance], session: Any, statistics: RunStatistics) -> list[GenerationResult]:
        """Run one ``generate`` call, and record what it held and took."""
        made = self.generate(batch)
        statistics.add(session.last_report, len(batch), sum(map(len, made.rows)), made.seconds)
        self._record(batch, session.last_report, made.rows, made.texts)
        for request, text, row in zip(batch, made.texts, made.rows, strict=True):
            self.references.compare(request, text, row)
        return [
            GenerationResult(text, TokenCounts(input_tokens=length, output_tokens=len(row)))
            for text, row, length in zip(made.texts, made.rows, made.prompt_tokens, strict=True)
        ]

    def generate(self, batch: list[Instance]) -> Generated:
        """Run one ``generate`` call."""
        inputs = self._to_device(self.prepare([self._chat(request) for request in batch]))
        settings = self.settings(batch[0])
        started = time.perf_counter()
        output = self.model.generate(**inputs, **settings)
        seconds = time.perf_counter() - started
        rows = [_until_end(row, settings) for row in output[:, inputs["input_ids"].shape[1] :].tolist()]
        texts = self.processor.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        stops = stop_strings(batch[0].args[2], self.ignored_stops)
        texts = [self.finish(cut(text, stops)) for text in texts]
        return Generated(rows, texts, inputs["attention_mask"].sum(1).tolist(), seconds)

    def finish(self, answer: str) -> str:
        """Last edit of an answer."""
        return answer

    def _chat(self, request: Instance) -> ChatMessages:
        return conversation(request, self.task_dict)

    def _to_device(self, inputs: Any) -> Any:
        return inputs.to(self.device)

    def _pad_token_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return self.eot_token_id if pad is None else pad

    def _record(self, batch: list[Instance], report: Any, rows: list[list[int]], texts: list[str]) -> None:
        """Write one line per answer; the report is the batch's (its byte figures are sums over ``batch`` answers)."""
        shared = {"model": type(self).__name__, "batch": len(batch), "report": report.to_dict()}
        for request, row, text in zip(batch, rows, texts, strict=True):
            _, _, _, doc_id, task, split = request.args
            answer = {"answer": text, "answer_tokens": row}
            self.journal.write({"task": task, "split": split, "doc_id": doc_id, **answer, **shared})

    def _log(self, statistics: RunStatistics) -> None:
        """Hand the means to lmms-eval, which puts those of rank 0 under ``throughput`` in its results."""
        log_metrics(
            total_elapsed_time=statistics.seconds,
            total_gen_tokens=statistics.tokens,
            avg_speed=statistics.tokens / statistics.seconds if statistics.seconds else 0.0,
            additional_metrics={"rank": self.rank, **statistics.means()},
        )


def arguments_without_budget(method: Any) -> bool:
    """True if a method was given no budget."""
    return method.budget_ratio is None and method.budget_entries is None


def _until_end(row: list[int], settings: dict[str, Any]) -> list[int]:
    """Tokens of one answer up to its end token; what follows in a batch is padding."""
    ends = settings["eos_token_id"]
    ends = ends if isinstance(ends, (list, tuple)) else [ends]
    stop = next((index for index, token in enumerate(row) if token in ends), len(row) - 1)
    return row[: stop + 1]


def _with_padding(requests: list[Instance], answers: list[GenerationResult]) -> list[GenerationResult]:
    """Give every padding copy the answer of the request that it copies (discarded by lmms-eval)."""
    known: dict[Any, GenerationResult] = {}
    rest = iter(answers)
    results = []
    for request in requests:
        key = request.args[3:6]
        if request.metadata.get(PADDING):
            results.append(known.get(key, GenerationResult("")))
        else:
            results.append(known.setdefault(key, answer := next(rest)) and answer)
    return results
