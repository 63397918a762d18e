"""The embedded demo model: a tiny Qwen2.5-VL trained from scratch on procedural scenes.

Importing this package imports neither torch nor transformers.
"""

from __future__ import annotations

from pathlib import Path


def path() -> Path:
    """Return the folder of the trained model, for the ordinary ``from_pretrained``."""
    return Path(__file__).parent / "weights"


def head_scores_path() -> Path:
    """Return the file of the trained model's visual-head scores; ``kvcomp-eval heads --model demo`` makes it."""
    return Path(__file__).parent / "head_scores.json"
