"""Make ``docs/dynamic.md``: ``python -m tests.tables.dynamic_table``.

Descriptions of held-out images by the embedded model, at 64 entries per KV head (32 selected, 32 window), and with 2, 4
and 8 selected entries; ROUGE-L F1 to the full-cache answer with paired-bootstrap intervals. Answers are kept in a
JSON-lines file, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from kvcomp_eval import Full, attach, demo, make_method
from kvcomp_eval.demo.evaluate import MAX_NEW_TOKENS, Demo
from kvcomp_eval.demo.heldout import document
from kvcomp_eval.demo.metrics import score
from kvcomp_eval.methods.base import Method
from kvcomp_eval.metrics.rouge import rouge_l
from kvcomp_eval.metrics.statistics import bootstrap_mean, paired_bootstrap
from tests.tables.drift_section import drift_section

WINDOW = 32
DOCUMENT = Path(__file__).parents[2] / "docs" / "dynamic.md"


@dataclass(frozen=True)
class Contender:
    """A row: a method's name, and what differs from its defaults."""

    name: str
    method: str
    parameters: dict[str, Any] = field(default_factory=dict)
    single: bool = False

    def make(self, selected: int) -> Method:
        return make_method(self.method, budget_entries=WINDOW + selected, **self.parameters)


#: Pages of a power of two that fits the selection, since a page of 16 cannot be chosen with 8 entries.
def paged(method: str, selected: int) -> Contender:
    return Contender(method, method, {"page": min(16, max(1, selected // 2))})


def by_drift(selected: int) -> list[Contender]:
    """HybridKV whose static heads are those that drift least over the first decode steps."""
    settings = {"classify": "drift", "theta_quantile": 0.5, "chunk_size": min(8, max(1, selected // 2))}
    return [
        Contender("hybridkv, by drift", "hybridkv", settings),
        Contender("hybridkv, by drift, refresh=rate", "hybridkv", settings | {"refresh": "rate"}),
    ]


def contenders(selected: int, chosen: list[str]) -> list[Contender]:
    """Rows at one budget."""
    rows = [
        Contender("random", "random"),
        Contender("snapkv", "snapkv"),
        Contender("bacon", "bacon"),
        Contender("prefill_oracle", "prefill_oracle", single=True),
        Contender("rcr, fixed threshold", "rcr", {"gain": 0.0}),
        Contender("rcr, update=layer", "rcr"),
        Contender("rcr, update=step", "rcr", {"update": "step"}),
        Contender("exact", "exact"),
        paged("quest", selected),
        paged("arkvale", selected),
        paged("freekv", selected),
        Contender("hybridkv", "hybridkv", {"chunk_size": min(8, max(1, selected // 2))}),
        Contender(
            "hybridkv, median theta",
            "hybridkv",
            {"theta_quantile": 0.5, "chunk_size": min(8, max(1, selected // 2))},
        ),
        Contender(
            "hybridkv, median theta, refresh=rate",
            "hybridkv",
            {"theta_quantile": 0.5, "chunk_size": min(8, max(1, selected // 2)), "refresh": "rate"},
        ),
        *by_drift(selected),
        Contender("infinigen", "infinigen"),
        Contender("shadowkv", "shadowkv", {"chunk_size": min(8, max(1, selected // 2))}),
    ]
    if selected < 32:  # where methods that re-select separate from each other
        chosen = chosen or ["snapkv", "bacon", "rcr, fixed threshold", "rcr, update=layer", "exact", *RETRIEVING]
    return [row for row in rows if not chosen or row.name in chosen]


RETRIEVING = ("quest", "arkvale", "freekv", "infinigen", "shadowkv")


class Answers:
    """Answers and figures by (task, selected, row, document), appended to a file as they are made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.known = {tuple(item["key"]): item for item in map(json.loads, lines)}

    def add(self, items: list[dict[str, Any]]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            for item in items:
                file.write(json.dumps(item) + "\n")
                self.known[tuple(item["key"])] = item


@torch.inference_mode()
def answer(
    model: Demo, task: str, selected: int, row: Contender | None, limit: int, batch: int, answers: Answers
) -> None:
    """Answer the documents that the file does not hold yet."""
    name = "full" if row is None else row.name
    todo = [i for i in range(limit) if (task, selected, name, i) not in answers.known]
    size = 1 if row is not None and row.single else batch
    groups = [todo[i : i + size] for i in range(0, len(todo), size)]
    if not groups:
        return
    with attach(model.model, Full() if row is None else row.make(selected)) as session:
        for group in tqdm(groups, desc=f"{task} {selected} {name}", leave=False):
            inputs = model.inputs(*(document(task, i) for i in group))
            output = model.model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS[task], do_sample=False)
            texts = model.processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            report = session.last_report
            heads = report.full_entries / sum(report.prompt_tokens)
            figures = {
                "entries": report.kept_entries / heads / len(group),
                "bytes": report.realised_ratio,
                "reads": report.reads_per_step / heads / len(group),
                "rate": report.details.get("refresh_rate"),
            }
            answers.add(
                [
                    {"key": [task, selected, name, i], "answer": text, **figures}
                    for i, text in zip(group, texts, strict=True)
                ]
            )


def column(answers: Answers, task: str, selected: int, name: str, limit: int) -> dict[str, Any]:
    """Fidelity by document and mean figures of a row."""
    items = [answers.known[task, selected, name, i] for i in range(limit)]
    full = [answers.known[task, 0, "full", i]["answer"] for i in range(limit)]
    fidelity = {i: rouge_l(item["answer"], full[i]) for i, item in enumerate(items)}
    scores = [score(document(task, i), item["answer"]) for i, item in enumerate(items)]
    rates = [item["rate"] for item in items if item["rate"] is not None]
    return {
        "fidelity": fidelity,
        "task": sum(next(iter(s.values())) for s in scores) / limit,
        "rate": sum(rates) / len(rates) if rates else None,
        **{name: sum(item[name] for item in items) / limit for name in ("entries", "bytes", "reads")},
    }


def table(answers: Answers, task: str, selected: int, names: list[str], limit: int) -> list[str]:
    """Markdown rows: fidelity with its interval, and the paired difference to BACON."""
    lines = [
        "| method | ROUGE-L to full | minus bacon | task score | refresh rate | reads | entries | bytes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    columns = {name: column(answers, task, selected, name, limit) for name in names}
    for name, figures in columns.items():
        mean = bootstrap_mean(figures["fidelity"])
        gap = ""
        if "bacon" in columns and name != "bacon":
            difference = paired_bootstrap(figures["fidelity"], columns["bacon"]["fidelity"])
            gap = f"{difference.mean:+.3f} [{difference.percentile.low:+.3f}, {difference.percentile.high:+.3f}]"
        rate = "" if figures["rate"] is None else f"{figures['rate']:.2f}"
        lines.append(
            f"| {name} | {mean.mean:.3f} [{mean.percentile.low:.3f}, {mean.percentile.high:.3f}] | {gap} "
            f"| {figures['task']:.3f} | {rate} | {figures['reads']:.1f} | {figures['entries']:.1f} "
            f"| {figures['bytes']:.1%} |"
        )
    return lines


def main() -> None:
    """Answer, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=200, help="descriptions at 32 selected entries")
    parser.add_argument("--few-limit", type=int, nargs=3, default=[200] * 3, help="descriptions at 8, 4 and 2 entries")
    parser.add_argument("--short-limit", type=int, default=200, help="short questions at 32 selected entries")
    parser.add_argument("--drift-limit", type=int, default=96, help="descriptions whose drift is analysed")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rows", nargs="*", default=[], help="only these rows")
    parser.add_argument("--answers", type=Path, default=Path("dynamic-answers.jsonl"))
    parser.add_argument("--write", action="store_true", help="write the page from the answers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    answers = Answers(options.answers)
    plan = [("describe", 32, options.limit), ("vqa", 32, options.short_limit)]
    plan += [("describe", selected, limit) for selected, limit in zip((8, 4, 2), options.few_limit, strict=True)]
    model = Demo.load(demo.path())
    text = []
    for task, selected, limit in plan:
        if limit == 0:
            continue
        answer(model, task, 0, None, limit, options.batch, answers)
        rows = contenders(selected, options.rows)
        for row in rows:
            answer(model, task, selected, row, limit, options.batch, answers)
        text += ["", f"## {task}, {selected} selected entries and the window, {limit} documents", ""]
        text += table(answers, task, selected, [row.name for row in rows], limit)
        print("\n".join(text[-len(rows) - 4 :]), flush=True)
    if options.drift_limit:
        names = ("bacon", "rcr, fixed threshold", "rcr, update=layer", "exact", "infinigen")
        limit = options.drift_limit
        fidelity = {name: column(answers, "describe", 32, name, limit)["fidelity"] for name in names}
        text += drift_section(model, fidelity, limit, options.batch, options.answers.with_suffix(""))
    if options.write:
        head = (Path(__file__).parent / "dynamic_head.md").read_text(encoding="utf-8")
        DOCUMENT.write_text(head + "\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
