"""The wrapper that a comparison runs: one loaded model, whose method, seed and record change from cell to cell."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts

from kvcomp_eval import model_wrappers
from kvcomp_eval.compare.clusters import visuals_of
from kvcomp_eval.compare.config import Config
from kvcomp_eval.compare.forced import ForcedWalks
from kvcomp_eval.compare.observe import CallObserver
from kvcomp_eval.compare.record import ALONE, REPEAT, REPORT_FIGURES, WHOLE, AnswerKey, CellRecord, key_of
from kvcomp_eval.model_wrappers.base import PADDING, ChatWrapper
from kvcomp_eval.report import CacheReport

#: What a report's details say of every head, with digits to keep: 1 for a static one, and scores that decide.
HEAD_FACTS = {"static": 0, "sparsity": 4, "drift": 4}

#: Prepared inputs kept for the next method, in bytes.
INPUT_CACHE = 2**30


class ComparedModel(ChatWrapper):
    """Mixed into a family's wrapper. Answers that the record has are not generated again.

    Set :attr:`record` and :attr:`method` before each cell.
    """

    record: CellRecord
    method: Any
    #: Called after every generated batch with the number of answers and of tokens.
    on_answers: Callable[[int, int], None]
    #: Walks of the teacher-forced measures.
    walks: ForcedWalks

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._prepared: OrderedDict[tuple[AnswerKey, ...], Any] = OrderedDict()
        self._prepared_bytes = 0
        #: Checksums of the images and videos of every document that was prepared.
        self._visuals: dict[AnswerKey, list[str]] = {}
        self._guard: str | None = None
        #: Keep what the methods did to heads and steps.
        self.is_traced = False
        self.on_answers = lambda answers, tokens: None
        #: First error of this process when there are several, which must all reach lmms-eval's barriers.
        self.failure: Exception | None = None

    def clean(self) -> None:
        """Keep the model: lmms-eval would drop it after the first cell."""

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """Answer what the record lacks, let the guards ask again, and return the recorded answers."""
        try:
            real = [item for item in requests if not item.metadata.get(PADDING)]
            self._ask_before(real)
            missing = [item for item in real if key_of(item) not in self.record.answers]
            if missing:
                with self._traced():
                    super().generate_until(missing)
            self._ask_after(real)
            self.walks.complete(real)
        except Exception as error:
            if self._world_size == 1:
                raise
            self.failure = error
        return [self._recorded(request) for request in requests]

    @contextmanager
    def _traced(self) -> Iterator[None]:
        """Have the method write its steps to a file, which the record knows once it is complete."""
        if not self.is_traced:
            yield
            return
        usual, path = self.method, self.record.new_trace()
        try:
            with usual.traced(path) as self.method:
                yield
        finally:
            self.method = usual
        if path.exists():
            self.record.add_trace(path)

    def _recorded(self, request: Instance) -> GenerationResult:
        line = self.record.answers.get(key_of(request), {"answer": "", "tokens": [], "input_tokens": 0})
        return GenerationResult(line["answer"], TokenCounts(line["input_tokens"], len(line["tokens"])))

    def _ask_before(self, requests: list[Instance]) -> None:
        """Answer the guarded samples alone, where the others are answered in batches and may round otherwise."""
        if self.batch_size > 1:
            self._ask(ALONE, self.method, requests[: max(1, self.record.guards.identity)])

    def _ask_after(self, requests: list[Instance]) -> None:
        """Answer the first sample once more, and the first ones at 100 %."""
        guards = self.record.guards
        if guards.leak or guards.positions:
            self._ask(REPEAT, self.method, requests[:1])
        if self.method.name != "full":
            whole = dataclasses.replace(self.method, budget_ratio=1.0, budget_entries=None)
            self._ask(WHOLE, whole, requests[: guards.identity])

    def _ask(self, guard: str, method: Any, requests: list[Instance]) -> None:
        usual = self.method
        self.method, self._guard = method, guard
        try:
            for request in requests:
                if (guard, *key_of(request)) not in self.record.guard_answers:
                    super().generate_until([request])
        finally:
            self.method, self._guard = usual, None

    def _chat(self, request: Instance) -> Any:
        return request  # turned into a chat by prepare(), which may not need it

    def prepare(self, chats: Sequence[Any]) -> Any:
        """Processor inputs of these requests: from memory if another method was given the same ones."""
        key = tuple(key_of(request) for request in chats)
        if key not in self._prepared:
            conversations = [super(ComparedModel, self)._chat(request) for request in chats]
            self._visuals |= {place: visuals_of(chat) for place, chat in zip(key, conversations, strict=True)}
            inputs = super().prepare(conversations)
            self._prepared[key] = inputs
            self._prepared_bytes += _size(inputs)
            while self._prepared_bytes > INPUT_CACHE:
                self._prepared_bytes -= _size(self._prepared.popitem(last=False)[1])
            return _copy(inputs)
        self._prepared.move_to_end(key)
        return _copy(self._prepared[key])

    def _answer(self, batch: list[Instance], session: Any, statistics: Any) -> list[GenerationResult]:
        self._session = session
        with CallObserver(self.model) as self._observer:
            return super()._answer(batch, session, statistics)

    def _to_device(self, inputs: Any) -> Any:
        moved = super()._to_device(inputs)
        self._observer.begin()
        return moved

    def inputs_alone(self, request: Instance) -> Any:
        """Processor inputs of one request, on the device."""
        return super()._to_device(self.prepare([request]))

    def _record(self, batch: list[Instance], report: CacheReport, rows: list[list[int]], texts: list[str]) -> None:
        """Write the batch's answers to the record; byte and time figures are its means per answer."""
        figures = {name: getattr(report, name) / len(batch) for name in REPORT_FIGURES}
        timing = self._observer.figures()
        answers = []
        for index, (request, row, text) in enumerate(zip(batch, rows, texts, strict=True)):
            task, doc_id = key_of(request)
            line = {
                "task": task,
                "doc_id": doc_id,
                "answer": text,
                "tokens": row,
                "visuals": self._visuals[task, doc_id],
                "input_tokens": report.prompt_tokens[index],
                "report": {**figures, "visual_tokens": report.visual_tokens[index]},
                "planned_bytes": self._prompt_bytes(report, self._budget) / len(batch),
                "declared_bytes": self._prompt_bytes(report, self._declared) / len(batch),
                "timing": timing,
            }
            if self.is_traced and self._guard is None:
                line["heads"] = self._heads(index, len(batch), report.details)
            answers.append(line)
        if self._guard is not None:
            positions = {"positions": self._observer.positions()} if self._guard == REPEAT else {}
            self.record.add_guard(self._guard, answers[0] | positions)
            return
        self.record.add(answers)
        self.on_answers(len(batch), sum(map(len, rows)))

    def _heads(self, sample: int, batch: int, details: dict[str, Any]) -> dict[str, Any]:
        """Entries [L][Hkv] that a sample holds; classes and scores [L * Hkv] of methods that tell them apart."""
        found: dict[str, Any] = {"entries": self._session.last_cache.entries(sample)}
        for name, digits in HEAD_FACTS.items():
            per_sample = details.get(name, [])[sample::batch]  # more than one where layers are packed one by one
            if per_sample:
                found[name] = [round(value, digits or None) for heads in per_sample for value in heads]
        return found

    def _prompt_bytes(self, report: CacheReport, entries: Callable[[int], float]) -> float:
        """Bytes of so many entries per head, as a function of the prompt's length."""
        return report.full_bytes * sum(map(entries, report.prompt_tokens)) / sum(report.prompt_tokens)

    def _budget(self, length: int) -> int:
        """Entries per head under the common convention."""
        found: int = self.method.entries(length, self.method.least_window)
        return found

    def _declared(self, length: int) -> float:
        """Entries per head that the method says it holds."""
        found: float = self.method.held_entries(length, len(self._session.last_cache.layers))
        return found


def load_model(config: Config) -> ComparedModel:
    """Load the model of a comparison, once."""
    base = getattr(model_wrappers, f"{config.model.family}_{model_wrappers.OPEN}")
    made = type(base.__name__, (ComparedModel, base), {"fixed_method": None, "__module__": __name__})
    loaded: ComparedModel = made(method="full", batch_size=config.batch_size, **config.model.args)
    loaded.walks = ForcedWalks(loaded, config.forced)
    loaded.is_traced = config.trace
    return loaded


def _copy(inputs: Any) -> Any:
    """A shallow copy: moving it to a device must not move the kept one."""
    return type(inputs)(dict(inputs))


def _size(inputs: Any) -> int:
    return sum(getattr(value, "nbytes", 0) for value in inputs.values())
