"""``kvcomp-eval doctor``: what is installed, and what each method, family, task and metric needs."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvcomp_eval.compare.exits import BAD, OK

REQUIRED = ("lmms-eval", "torch", "transformers", "accelerate", "qwen-vl-utils", "filelock", "datasets")
OPTIONAL = {
    "decord": "reads videos; without it PyAV does",
    "av": "reads videos where decord is missing",
    "flash-attn": "attn=flash_attention_2 on a GPU",
    "pycocoevalcap": "BLEU, METEOR, CIDEr of captions",
    "nltk": "WUPS of NextQA",
    "openai": "the judge of Video-ChatGPT",
    "ray": "a grid over several machines",
}
#: Environment variable -> what it is for.
VARIABLES = {"KVCOMP_MILEBENCH_ROOT": "MileBench's folder or tar", "HF_HOME": "where hub downloads go"}


@dataclass(frozen=True)
class Finding:
    """One checked thing; ``state`` is ok, missing (optional) or broken."""

    area: str
    name: str
    state: str
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(_: argparse.Namespace) -> int:
    """Print all findings; exit code 1 if something required is broken."""
    findings = list(examine())
    table = Table("", "what", "state", "note")
    styles = {"ok": "green", "missing": "yellow", "broken": "red"}
    for finding in findings:
        state = f"[{styles[finding.state]}]{finding.state}[/]"
        table.add_row(finding.area, escape(finding.name), state, escape(finding.text))
    console = Console()
    console.print(table)
    broken = [finding for finding in findings if finding.state == "broken"]
    console.print(f"{len(broken)} broken." if broken else "Nothing required is broken.")
    return BAD if broken else OK


def examine() -> Iterator[Finding]:
    """Check everything, each thing by itself: one failure hides no other."""
    yield from _packages()
    yield from _plugins()
    yield _try("device", "accelerator", _device)
    yield from _methods()
    yield from _families()
    yield _try("model", "demo", _demo)
    yield from _tasks()
    yield from _tools()


def _packages() -> Iterator[Finding]:
    for name in REQUIRED:
        yield _try("package", name, partial(version, name))
    for name, use in OPTIONAL.items():
        try:
            yield Finding("package", name, "ok", f"{version(name)}: {use}")
        except PackageNotFoundError:
            yield Finding("package", name, "missing", use)
    if not find_spec("filelock._api"):
        yield Finding("package", "filelock", "broken", "lmms-eval 0.7 needs filelock._api: pip install 'filelock<4.3'")


def _plugins() -> Iterator[Finding]:
    """One broken plug-in makes lmms-eval drop the models of all."""
    for point in entry_points(group="lmms_eval.models"):
        yield _try("plug-in", point.name, partial(_module_of, point))


def _module_of(point: EntryPoint) -> str:
    return str(point.load().__module__)


def _device() -> str:
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join(names) or f"no GPU; CPU with {torch.get_num_threads()} threads"


def _methods() -> Iterator[Finding]:
    from kvcomp_eval.methods.registry import METHODS, method_class, method_parameters

    for name in METHODS:

        def describe(name: str = name) -> str:
            needs = [key for key in method_parameters(name) if key == "head_scores"]
            text = method_class(name).paper
            return f"{text}; needs head_scores, see `kvcomp-eval heads`" if needs else text

        yield _try("method", name, describe)


def _families() -> Iterator[Finding]:
    from kvcomp_eval.model_wrappers import FAMILIES

    for family, entry in FAMILIES.items():

        def load(family: str = family, name: str = entry.class_name) -> str:
            wrapper = getattr(importlib.import_module(f"kvcomp_eval.model_wrappers.{family}"), name)
            return ", ".join(wrapper.model_classes)

        yield _try("family", family, load)


def _demo() -> str:
    from kvcomp_eval.demo import path

    size = (path() / "model.safetensors").stat().st_size
    return f"{size / 2**20:.1f} MiB"


def _tasks() -> Iterator[Finding]:
    from kvcomp_eval.registration import task_folder

    for folder in sorted(path for path in task_folder().iterdir() if path.is_dir() and any(path.glob("*.yaml"))):
        count = len(list(folder.glob("*.yaml")))
        yield Finding("tasks", folder.name, "ok", f"{count} task files; data: see docs/benchmarks.md")


def _tools() -> Iterator[Finding]:
    java = shutil.which("java")
    yield Finding("tool", "java", "ok" if java else "missing", "tokeniser and METEOR of caption metrics")
    for name, use in VARIABLES.items():
        value = os.environ.get(name)
        state = "missing" if not value else "ok" if Path(value).exists() else "broken"
        yield Finding("variable", name, state, f"{use}{f': {value}' if value else ''}")


def _try(area: str, name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(area, name, "ok", check())
    except Exception as error:
        return Finding(area, name, "broken", f"{type(error).__name__}: {error}")
