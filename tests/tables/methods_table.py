"""Make ``docs/methods.md``: ``python -m tests.tables.methods_table --prefill PREFILL.json``.

Every figure comes from running: each method answers on the five tiny test families and on the demo model's held-out
documents; prefill ratios are read from ``python -m kvcomp_eval.bench prefill --json``.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

from kvcomp_eval import attach, demo, make_method
from kvcomp_eval.demo.evaluate import Demo, evaluate
from kvcomp_eval.methods.registry import METHODS, method_class
from tests.families import FAMILIES, IMAGE_SIZES, build, prompt_inputs
from tests.head_scores import made_up_scores

BUDGET = 0.1
DOCUMENT = Path(__file__).parents[2] / "docs" / "methods.md"
#: What a method cannot do without.
NEEDED: dict[str, dict[str, Any]] = {"sparsemm": {"head_scores": "demo"}}


def families_run(name: str) -> int:
    """On how many of the five families a compressed answer comes out."""
    from PIL import Image

    image = Image.new("RGB", IMAGE_SIZES[0], "gray")
    extra = {"head_scores": made_up_scores()} if name in NEEDED else {}
    for family in FAMILIES:
        model, processor = build(family)
        inputs = prompt_inputs(family, processor, [[image]], ["what is it?"])
        budget = {} if name == "full" else {"budget_ratio": 0.9}
        with attach(model, make_method(name, **budget, **extra)) as session:
            model.generate(**inputs, max_new_tokens=4, do_sample=False)
            assert session.last_report.generated_tokens == 3
    return len(FAMILIES)


def prefill_ratios(files: list[Path]) -> dict[str, dict[int, str]]:
    """Prefill time over stock by method and prompt length, the median of the rounds."""
    ratios: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for file in files:
        measured = json.loads(file.read_text())["measurements"]
        by_length: defaultdict[int, dict[str, list[float]]] = defaultdict(dict)
        for item in measured:
            by_length[item["length"]][item["contender"]] = item["latency"]["seconds"]
        for length, contenders in by_length.items():
            for name, seconds in contenders.items():
                pairs = zip(seconds, contenders["stock"], strict=True)
                ratios[name][length] = f"{median(a / b for a, b in pairs):.2f}x"
    return ratios


def rows(limit: int, prefill: dict[str, dict[int, str]]) -> list[dict[str, str]]:
    """One row per registered method."""
    model = Demo.load(demo.path())
    wanted = [(name, BUDGET) for name in METHODS if name != "full"]
    methods = [("full", 1.0), *wanted]
    vqa = evaluate(model, "vqa", limit, methods, **NEEDED)
    describe = evaluate(model, "describe", max(1, limit // 2), methods, **NEEDED)
    table = []
    for name, ratio in tqdm(methods, desc="families"):
        cls, short, long = method_class(name), vqa[name, ratio], describe[name, ratio]
        table.append(
            {
                "method": f"`{name}`" + (" (reference)" if cls.kind == "reference" else ""),
                "source": cls.paper,
                "budget by": cls.varies,
                "merges": "yes" if cls.merges else "-",
                "decoding": cls.decoding,
                "families": f"{families_run(name)} of {len(FAMILIES)}",
                "device bytes": f"{short['bytes']:.1%} / {long['bytes']:.1%}",
                "accuracy": f"{short['accuracy']:.2f}",
                "fidelity": f"{long['rouge_to_full']:.2f}",
                **{f"prefill {n // 1024}k": prefill[name].get(n, "") for n in sorted(all_lengths(prefill))},
            }
        )
    return table


def all_lengths(prefill: dict[str, dict[int, str]]) -> set[int]:
    return {length for ratios in prefill.values() for length in ratios}


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefill", type=Path, nargs="*", default=[], help="results of the prefill benchmark")
    parser.add_argument("--limit", type=int, default=60, help="short questions; half as many descriptions")
    options = parser.parse_args()
    table = rows(options.limit, prefill_ratios(options.prefill))
    header = list(table[0])
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row[name] for name in header) + " |" for row in table]
    text = (Path(__file__).parent / "methods_head.md").read_text(encoding="utf-8")
    text = text.format(limit=options.limit, half=max(1, options.limit // 2), budget=f"{BUDGET:.0%}")
    DOCUMENT.write_text(text + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
