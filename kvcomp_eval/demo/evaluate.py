"""Held-out evaluation: ``python -m kvcomp_eval.demo.evaluate --help``.

Prints a Markdown table with one row per task and configuration; `rouge_to_full` compares a compressed
answer with the full-cache answer to the same document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tqdm import tqdm
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

from kvcomp_eval import attach, make_method
from kvcomp_eval.demo import path
from kvcomp_eval.demo.heldout import TASKS, document, labelled, render_images
from kvcomp_eval.demo.metrics import score
from kvcomp_eval.metrics.rouge import rouge_l
from kvcomp_eval.session import Session

MAX_NEW_TOKENS = {"vqa": 48, "describe": 224, "across": 64}


@dataclass(frozen=True)
class Demo:
    """The loaded model and its processor."""

    model: Any
    processor: Any

    @classmethod
    def load(cls, folder: Path) -> Demo:
        """Load with the ordinary ``from_pretrained``, in float32."""
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        return cls(model, AutoProcessor.from_pretrained(folder))

    def messages(self, doc: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the chat of one document: each image behind its label, then the question."""
        images = [{"type": "image"}] * doc["images"]
        content = labelled(images, doc["question"], lambda text: {"type": "text", "text": text})
        return [{"role": "user", "content": content}]

    def inputs(self, *docs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Return the model inputs of documents, as one left-padded batch."""
        chats = [self.messages(doc) for doc in docs]
        texts = self.processor.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        images = [[Image.fromarray(image) for image in render_images(doc)] for doc in docs]
        return dict(self.processor(text=texts, images=images, return_tensors="pt", padding=True))

    @torch.inference_mode()
    def answer(self, doc: dict[str, Any]) -> str:
        """Answer one document greedily with ``generate``."""
        inputs = self.inputs(doc)
        output = self.model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS[doc["task"]], do_sample=False)
        generated = output[0, inputs["input_ids"].shape[1] :]
        return str(self.processor.decode(generated, skip_special_tokens=True))


@contextlib.contextmanager
def configured(demo: Demo, method: str, ratio: float, **parameters: Any) -> Iterator[Session | None]:
    """Compress inside the block; the method "full" at ratio 1 is the stock cache, without a session."""
    if method == "full":
        yield None
        return
    with attach(demo.model, make_method(method, budget_ratio=ratio, **parameters)) as session:
        yield session


def evaluate(
    demo: Demo,
    task: str,
    limit: int,
    methods: list[tuple[str, float]],
    show: Callable[..., Any] = tqdm,
    **parameters: Any,
) -> dict[tuple[str, float], dict[str, float]]:
    """Return the mean of every metric per (method, budget ratio), and the realised share of a full cache's bytes.

    ``parameters`` holds hyper-parameters by method name.
    """
    docs = [document(task, index) for index in range(limit)]
    references: list[str] = []
    results = {}
    for method, ratio in methods:
        sums: dict[str, list[float]] = defaultdict(list)
        answers = []
        with configured(demo, method, ratio, **parameters.get(method, {})) as session:
            for doc in show(docs, desc=f"{task} {method} {ratio:g}", leave=False):
                answers.append(demo.answer(doc))
                sums["bytes"].append(1.0 if session is None else session.last_report.realised_ratio)
        references = references or answers
        for doc, answer, reference in zip(docs, answers, references, strict=True):
            scores = score(doc, answer)
            scores["rouge_to_full"] = rouge_l(answer, reference)
            for name, value in scores.items():
                sums[name].append(value)
        results[method, ratio] = {name: sum(values) / len(values) for name, values in sums.items()}
    return results


def markdown(task: str, results: dict[tuple[str, float], dict[str, float]]) -> str:
    """Format the results of one task as a Markdown table."""
    names = sorted({name for scores in results.values() for name in scores})
    lines = [f"| {task} | budget | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for (method, ratio), scores in results.items():
        cells = " | ".join(f"{scores[name]:.3f}" for name in names)
        lines.append(f"| {method} | {ratio:.0%} | {cells} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and evaluate."""
    parser = argparse.ArgumentParser(
        prog="python -m kvcomp_eval.demo.evaluate",
        description="Held-out accuracy of the demo model, with the full cache and compressed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=path(), help="folder of the exported model")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--limit", type=int, default=100, help="documents per task")
    parser.add_argument("--methods", nargs="*", default=[], help="compression methods beside the full cache")
    parser.add_argument("--ratios", nargs="*", type=float, default=[0.1, 0.2], help="budget ratios of the methods")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    demo = Demo.load(options.model)
    methods = [("full", 1.0), *((m, r) for m in options.methods for r in options.ratios)]
    record = {}
    for task in options.tasks:
        results = evaluate(demo, task, options.limit, methods)
        record[task] = {f"{method}@{ratio:g}": scores for (method, ratio), scores in results.items()}
        print(f"\n{markdown(task, results)}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
