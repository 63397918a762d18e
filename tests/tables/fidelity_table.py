"""Does fidelity fall with the budget? ``python -m tests.tables.fidelity_table --documents 20``.

Descriptions of held-out demo images under one method at falling budgets, compared with the full cache: ROUGE-L F1 of
the answers, and mean KL along the full cache's answer. Prints 95 % intervals (documents resampled), and for each step
down the paired change; exits with 1 if a step went the wrong way with an interval that excludes no change.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

from kvcomp_eval import attach, demo, make_method
from kvcomp_eval.demo.evaluate import MAX_NEW_TOKENS, Demo
from kvcomp_eval.demo.heldout import document
from kvcomp_eval.methods.base import Method
from kvcomp_eval.metrics.fidelity import forced_logits, free_running, teacher_forced
from kvcomp_eval.metrics.statistics import bootstrap_mean, paired_bootstrap

TASK = "describe"
FULL = "full"
RATIOS = (0.8, 0.4, 0.2, 0.1, 0.05)
#: Measure -> its sign: +1 where fidelity means more of it.
SIGNS = {"rouge_l": 1, "kl": -1}

Scores = dict[str, dict[int, float]]


@torch.inference_mode()
def answer(demo_model: Demo, inputs: dict[str, Any]) -> list[int]:
    """Greedy tokens, the end token included."""
    output = demo_model.model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS[TASK], do_sample=False)
    return output[0, inputs["input_ids"].shape[1] :].tolist()


@torch.inference_mode()
def observed(
    demo_model: Demo, method: Method, inputs: dict[str, Any], reference: list[int] | None = None
) -> tuple[list[int], torch.Tensor]:
    """What a method answers, and its logits along the reference (its own answer if there is none)."""
    with attach(demo_model.model, method):
        tokens = answer(demo_model, inputs)
        return tokens, forced_logits(demo_model.model, inputs, reference or tokens)


def measure(demo_model: Demo, rows: dict[str, Method], documents: int, show: Callable[..., Any] = tqdm) -> list[Scores]:
    """Scores of every row by measure and document."""
    scores: list[Scores] = [{name: {} for name in SIGNS} for _ in rows]
    decode = demo_model.processor.tokenizer.decode
    for index in show(range(documents)):
        inputs = demo_model.inputs(document(TASK, index))
        reference, full = observed(demo_model, make_method(FULL), inputs)
        text = decode(reference, skip_special_tokens=True)
        for found, method in zip(scores, rows.values(), strict=True):
            tokens, logits = observed(demo_model, method, inputs, reference)
            free = free_running(decode(tokens, skip_special_tokens=True), text, tokens, reference)
            found["rouge_l"][index] = free.rouge_l
            found["kl"][index] = teacher_forced(full, logits, reference).kl
    return scores


def cell(estimate: Any) -> str:
    return f"{estimate.mean:.3f} [{estimate.percentile.low:.3f}, {estimate.percentile.high:.3f}]"


def table(labels: list[str], scores: list[Scores]) -> tuple[str, list[str]]:
    """Markdown, and the steps that went the wrong way."""
    lines = ["| budget | ROUGE-L F1 | change | KL, nats | change |", "|---|---|---|---|---|"]
    wrong = []
    for number, (label, found) in enumerate(zip(labels, scores, strict=True)):
        cells = [label]
        for name, sign in SIGNS.items():
            cells.append(cell(bootstrap_mean(found[name])))
            if number == 0:
                cells.append("")
                continue
            change = paired_bootstrap(found[name], scores[number - 1][name])
            cells.append(cell(change))
            if min(sign * change.percentile.low, sign * change.percentile.high) > 0:
                wrong.append(f"{name}, {labels[number - 1]} to {label}: {cell(change)}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines), wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tables.fidelity_table", description=__doc__)
    parser.add_argument("--method", default="snapkv")
    parser.add_argument("--documents", type=int, default=20)
    options = parser.parse_args()
    rows = {FULL: make_method(FULL)}
    rows |= {f"{ratio:.0%}": make_method(options.method, budget_ratio=ratio) for ratio in RATIOS}
    scores = measure(Demo.load(demo.path()), rows, options.documents)
    text, wrong = table(list(rows), scores)
    print(f"\n{options.method}, {options.documents} documents of kvcomp_demo_{TASK}\n\n{text}")
    for step in wrong:
        print(f"Not monotone: {step}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
