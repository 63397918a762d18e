"""What the anchors share: an environment of the peer's own, a job for it, and prompts of the demo model."""

from __future__ import annotations

import argparse
import subprocess
import sysconfig
import tempfile
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from kvcomp_eval import demo
from kvcomp_eval.demo.evaluate import Demo
from kvcomp_eval.demo.heldout import TASKS, document

#: The peers' hooks read keyword arguments that later releases renamed.
TRANSFORMERS = "transformers==5.2.0"
#: What that release does not know; it derives the positions from the ids.
_UNKNOWN_TO_PEER = ("mm_token_type_ids",)


def parser(description: str, name: str) -> argparse.ArgumentParser:
    """Options of every anchor."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = Path(tempfile.gettempdir()) / f"kvcomp-anchor-{name}"
    made.add_argument("--environment", type=Path, default=folder, help="where the peer is installed")
    made.add_argument("--prompts", type=int, default=20)
    return made


def build_environment(folder: Path, *requirements: str) -> Path:
    """Make the peer's environment unless it is there; returns its Python.

    torch, which is large, is borrowed from this environment, which comes behind the peer's own packages. The
    requirements are installed without what they depend on, which is for other things than we ask of them.
    """
    python = folder / "bin" / "python"
    done = folder / "anchor-ready"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        own = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
        (Path(own) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        for packages in ([TRANSFORMERS], ["--no-deps", *requirements]):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        done.touch()
    return python


def load_prompts(count: int) -> tuple[Any, list[dict[str, Any]]]:
    """The demo model, and inputs of held-out documents of all its tasks in turn."""
    loaded = Demo.load(demo.path())
    tasks = list(TASKS)
    return loaded.model, [loaded.inputs(document(tasks[i % len(tasks)], i)) for i in range(count)]


def ask_peer(python: Path, script: str, prompts: list[dict[str, Any]], settings: Any) -> dict[str, Any]:
    """Let the peer's script answer ``job.pt`` with ``answer.pt``, and return what that holds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = {
            "model": str(demo.path()),
            "prompts": [{k: v for k, v in inputs.items() if k not in _UNKNOWN_TO_PEER} for inputs in prompts],
            "settings": settings,
        }
        torch.save(job, folder / "job.pt")
        subprocess.run([python, Path(__file__).with_name(script), folder], check=True)
        answer: dict[str, Any] = torch.load(folder / "answer.pt")
        return answer


def overlap(ours: torch.Tensor, theirs: torch.Tensor) -> list[float]:
    """Intersection over union of the kept sets of every head; both bool [L, Hkv, N]."""
    return ((ours & theirs).sum(-1) / (ours | theirs).sum(-1)).flatten().tolist()


def introduction(versions: dict[str, str], prompts: list[dict[str, Any]]) -> str:
    """First sentence of a report."""
    theirs = ", ".join(f"{package} {number}" for package, number in versions.items())
    ours = ", ".join(f"{package} {version(package)}" for package in ("kvcomp-eval", "transformers"))
    lengths = [inputs["input_ids"].shape[1] for inputs in prompts]
    return (
        f"Peer: {theirs}, eager attention. Ours: {ours}, sdpa. {len(lengths)} prompts of the demo model, "
        f"{min(lengths)} to {max(lengths)} tokens, float32."
    )
