"""What determines a cell's answers, as one dictionary and its hash: cells of different settings are never mixed."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import kvcomp_eval
from kvcomp_eval import model_wrappers, tasks
from kvcomp_eval.compare.config import Cell, Config
from kvcomp_eval.versions import installed_versions

PACKAGES = ("kvcomp-eval", "lmms-eval", "torch", "transformers", "qwen-vl-utils")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
#: Parts of this package whose code touches neither answers nor scores.
_OUTSIDE = {"bench", "cli.py", "compare", "doctor.py", "heads"}


def cell_settings(config: Config, cell: Cell, task_config: dict[str, Any], weights: str) -> dict[str, Any]:
    """Everything that a cell's answers and metrics depend on, JSON-able.

    Parameters
    ----------
    config, cell
    task_config : dict
        lmms-eval's dump of the task.
    weights : str
        Digest of the checkpoint, from :func:`checkpoint_digest`.
    """
    return {
        "model": {"family": config.model.family, **config.model.args},
        "weights": weights,
        "method": {"name": cell.row.method, **cell.row.make(cell.seed).parameters()},
        "task": _plain(task_config),
        "limit": cell.limit,
        "seed": cell.seed,
        "batch_size": config.batch_size,
        "versions": versions(),
        "code": code_digest(),
    }


def fingerprint(settings: dict[str, Any]) -> str:
    """Hash of the settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Changed settings, one sentence each: ``limit was 4, is 8``."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            found += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} was {before!r}, is {after!r}")
    return found


def versions() -> dict[str, str]:
    """Installed versions of what determines answers."""
    return installed_versions(PACKAGES)


@cache
def code_digest() -> str:
    """Hash of this package's own sources behind the answers; a version number says nothing of an edited checkout."""
    root = Path(kvcomp_eval.__file__).parent
    files = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in _OUTSIDE]
    for package in (model_wrappers, tasks):  # beside the package in a checkout
        files += Path(package.__file__).parent.rglob("*.py")
    return _digest(sorted(set(files)), len(root.parts))


def checkpoint_digest(folder: str, revision: str) -> str:
    """Identity of a checkpoint: contents of a small folder, sizes and times of a large one, id on a hub."""
    path = Path(folder)
    if not path.is_dir():
        return f"{folder}@{revision}"
    files = sorted(file for file in path.iterdir() if file.is_file())
    if sum(file.stat().st_size for file in files) < 2**28:
        return _digest(files, len(path.parts))
    listing = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:16]


def _digest(files: list[Path], depth: int) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update("/".join(file.parts[depth:]).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:16]


def _plain(value: Any) -> Any:
    """JSON-able copy. Functions, also those that lmms-eval wrote out as text, lose their addresses."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return _ADDRESS.sub("", value)
    if isinstance(value, (int, float, bool, type(None))):
        return value
    return getattr(value, "__qualname__", type(value).__qualname__)
