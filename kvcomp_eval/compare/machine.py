"""Where a run took place: for the provenance of a report."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from kvcomp_eval.compare.fingerprint import versions


def describe_machine() -> dict[str, Any]:
    """Processor, accelerator, system and versions; no names of hosts or users."""
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
