"""``kvcomp-eval heads``: measure a model's visual heads and write them to a file. Importing this imports no torch."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from kvcomp_eval import demo
from kvcomp_eval.jsonl import recovered_lines

DEMO = "demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure which heads look at what the model reads off a page (SparseMM, arXiv 2506.05344), for "
        "method=sparsemm,head_scores=FILE. Pages are drawn on the fly. A run that was interrupted continues, and one "
        "with more --pages adds to what is there."
    )
    parser.add_argument("--model", required=True, help="hub id, folder, or demo for the embedded model")
    parser.add_argument("--output", required=True, type=Path, help="file to write, for example heads.json")
    parser.add_argument("--pages", type=int, default=200, help="pages to read (default: 200; the paper has 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the pages (default: 0)")
    parser.add_argument("--max-new-tokens", type=int, default=1024, help="longest answer (default: 1024, the paper's)")
    parser.add_argument("--revision", help="revision on the hub")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")


def run(options: argparse.Namespace) -> int:
    """Measure, write ``options.output``, and print what was found; returns the exit code."""
    if options.pages < 1 or options.seed < 0:
        raise SystemExit(f"--pages={options.pages} must be at least 1 and --seed={options.seed} at least 0.")
    model, processor = _load(options)
    settings = {
        "model": options.model,
        "revision": _revision(model, options.model),
        "family": model.config.model_type,
        "seed": options.seed,
        "max_new_tokens": options.max_new_tokens,
    }
    journal = options.output.with_name(f"{options.output.stem}.pages.jsonl")
    records = read_journal(journal, settings)[: options.pages]
    make_page = _page_maker(options.model)
    from kvcomp_eval.heads.identify import score_page

    with journal.open("a", encoding="utf-8") as lines:
        for index in tqdm(range(len(records), options.pages), "pages", options.pages, initial=len(records)):
            page = score_page(model, processor, make_page(options.seed, index), options.max_new_tokens)
            records.append({"page": index, "matched": page.matched, "scores": page.scores.tolist()})
            lines.write(json.dumps(records[-1]) + "\n")
            lines.flush()
    summary = summarise(settings, records)
    partial = options.output.with_suffix(".partial")
    partial.write_text(json.dumps(summary) + "\n", encoding="utf-8")
    os.replace(partial, options.output)
    print(f"{options.output}: " + ", ".join(f"{key} {value}" for key, value in summary.items() if key != "scores"))
    return 0


def read_journal(path: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Pages that an earlier run with these settings finished; starts the file where there is none.

    A last line that was torn by a kill is cut off.
    """
    lines = recovered_lines(path)
    if not lines:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings) + "\n", encoding="utf-8")
        return []
    found = json.loads(lines[0])
    if found != settings:
        changed = [
            f"{key} {found.get(key)!r}, now {value!r}" for key, value in settings.items() if found.get(key) != value
        ]
        raise SystemExit(f"{path} was begun with {'; '.join(changed)}: delete it, or choose another --output.")
    return [json.loads(line) for line in lines[1:]]


def summarise(settings: Mapping[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """What the output file holds: where the scores come from, their stability, and their mean over the pages."""
    from kvcomp_eval.heads.identify import split_half_correlation

    matched = sum(record["matched"] for record in records)
    pages = [np.array(record["scores"]) for record in records]
    if not any(page.any() for page in pages):
        raise SystemExit(
            f"No head of {settings['model']} looked at a word while writing it ({matched} words of {len(pages)} pages "
            "were found in the answers), so there is nothing to rank; this model does not read such pages."
        )
    return {
        **settings,
        "pages": len(pages),
        "matched_tokens": matched,
        "split_half_rank_correlation": split_half_correlation(pages),
        "scores": np.round(np.mean(pages, axis=0), 6).tolist(),
    }


def _page_maker(model: str) -> Callable[[int, int], Any]:
    if model == DEMO:
        from kvcomp_eval.heads.demo_pages import make_demo_page

        return make_demo_page
    from kvcomp_eval.heads.pages import make_page

    return make_page


def _load(options: argparse.Namespace) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    folder = str(demo.path()) if options.model == DEMO else options.model
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = "float32" if options.model == DEMO and options.dtype == "auto" else options.dtype
    source = {"revision": options.revision} if options.revision else {}
    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, **source)
    return model.to(device).eval(), AutoProcessor.from_pretrained(folder, **source)


def _revision(model: Any, name: str) -> str:
    """Commit on the hub, or a hash of the weights of a folder."""
    folder = demo.path() if name == DEMO else Path(name)
    if not folder.is_dir():
        return str(getattr(model.config, "_commit_hash", None))
    return weights_hash(folder)


def weights_hash(folder: Path) -> str:
    """First 12 digits of the SHA-256 of a folder's safetensors files."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:12]
