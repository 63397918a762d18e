"""Made-up head scores in a file, for models that were never measured."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np


@functools.lru_cache
def made_up_scores(layers: int = 3, heads: int = 8, seed: int = 0) -> str:
    """Path of a file with uneven scores [layers, heads]; it lives as long as the test run."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "heads.json"
    path.write_text(json.dumps({"scores": np.random.default_rng(seed).exponential(size=(layers, heads)).tolist()}))
    return str(path)
