"""The wrapper that a comparison runs: one loaded model, whose method, seed and record change from cell to cell."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts

from kvcomp_eval import model_wrappers
from kvcomp_eval.compare.config import Config
from kvcomp_eval.compare.observe import CallObserver
from kvcomp_eval.compare.record import ALONE, REPEAT, REPORT_FIGURES, WHOLE, AnswerKey, CellRecord
from kvcomp_eval.model_wrappers.base import PADDING, ChatWrapper
from kvcomp_eval.report import CacheReport

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

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._prepared: OrderedDict[tuple[AnswerKey, ...], Any] = OrderedDict()
        self._prepared_bytes = 0
        self._guard: str | None = None
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
                super().generate_until(missing)
            self._ask_after(real)
        except Exception as error:
            if self._world_size == 1:
                raise
            self.failure = error
        return [self._recorded(request) for request in requests]

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
            inputs = super().prepare([super(ComparedModel, self)._chat(request) for request in chats])
            self._prepared[key] = inputs
            self._prepared_bytes += _size(inputs)
            while self._prepared_bytes > INPUT_CACHE:
                self._prepared_bytes -= _size(self._prepared.popitem(last=False)[1])
            return _copy(inputs)
        self._prepared.move_to_end(key)
        return _copy(self._prepared[key])

    def _answer(self, batch: list[Instance], session: Any, statistics: Any) -> list[GenerationResult]:
        with CallObserver(self.model) as self._observer:
            return super()._answer(batch, session, statistics)

    def _to_device(self, inputs: Any) -> Any:
        moved = super()._to_device(inputs)
        self._observer.begin()
        return moved

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
                "input_tokens": report.prompt_tokens[index],
                "report": {**figures, "visual_tokens": report.visual_tokens[index]},
                "planned_bytes": self._planned_bytes(report) / len(batch),
                "timing": timing,
            }
            answers.append(line)
        if self._guard is not None:
            positions = {"positions": self._observer.positions()} if self._guard == REPEAT else {}
            self.record.add_guard(self._guard, answers[0] | positions)
            return
        self.record.add(answers)
        self.on_answers(len(batch), sum(map(len, rows)))

    def _planned_bytes(self, report: CacheReport) -> float:
        """Bytes under the common convention: as many entries per head as the budget allows."""
        planned = sum(self.method.entries(length, self.method.least_window) for length in report.prompt_tokens)
        return report.full_bytes * planned / sum(report.prompt_tokens)


def load_model(config: Config) -> ComparedModel:
    """Load the model of a comparison, once."""
    base = getattr(model_wrappers, f"{config.model.family}_{model_wrappers.OPEN}")
    made = type(base.__name__, (ComparedModel, base), {"fixed_method": None, "__module__": __name__})
    loaded: ComparedModel = made(method="full", batch_size=config.batch_size, **config.model.args)
    return loaded


def key_of(request: Instance) -> AnswerKey:
    """Task and document of a request."""
    return request.args[4], request.args[3]


def _copy(inputs: Any) -> Any:
    """A shallow copy: moving it to a device must not move the kept one."""
    return type(inputs)(dict(inputs))


def _size(inputs: Any) -> int:
    return sum(getattr(value, "nbytes", 0) for value in inputs.values())
