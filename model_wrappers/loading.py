"""Which checkpoint is loaded, where, and in which precision."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator, DistributedType
from loguru import logger

from kvcomp_eval.model_wrappers import FAMILIES
from kvcomp_eval.model_wrappers.arguments import Arguments

#: Value of ``pretrained`` for the embedded model, and the family that it belongs to.
DEMO, DEMO_FAMILY = "demo", "qwen2_5_vl"

_RANKS = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))


def checkpoint_folder(pretrained: str, family: str) -> str:
    """Translate ``demo`` to the folder of the embedded model; hub ids and other folders are returned as they are."""
    if pretrained != DEMO:
        if pretrained.startswith(("/", ".", "~")) and not Path(pretrained).is_dir():
            raise FileNotFoundError(f"pretrained={pretrained!r} is not a folder; name one, or a model id on the hub.")
        return pretrained
    if family != DEMO_FAMILY:
        raise ValueError(f"pretrained=demo is a Qwen2.5-VL, not a {family}; use --model {DEMO_FAMILY}_<method>.")
    from kvcomp_eval import demo

    if not (demo.path() / "config.json").is_file():
        raise FileNotFoundError(
            f"The demo model is missing in {demo.path()}; reinstall kvcomp-eval, or train it: "
            "python -m kvcomp_eval.demo.train."
        )
    return str(demo.path())


def model_class(folder: str, arguments: Arguments, family: str, classes: Mapping[str, str]) -> Any:
    """Return the transformers class for a checkpoint, or refuse one of another family.

    Parameters
    ----------
    folder : str
    arguments : Arguments
    family : str
    classes : mapping
        ``model_type`` of the checkpoint's configuration -> class name in transformers.
    """
    config = transformers.AutoConfig.from_pretrained(
        folder, revision=arguments.revision, trust_remote_code=arguments.trust_remote_code
    )
    if config.model_type in classes:
        return getattr(transformers, classes[config.model_type])
    if config.model_type in FAMILIES:
        remedy = f"use --model {config.model_type}_<method>"
    else:
        remedy = f"supported families are {', '.join(FAMILIES)}"
    raise ValueError(f"Checkpoint {arguments.pretrained!r} is a {config.model_type}, not a {family}; {remedy}.")


def make_accelerator() -> Accelerator:
    """Join the processes of this run; each holds a whole model, so sharded launches are refused."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    if accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        raise ValueError(
            f"Launched under {accelerator.distributed_type.value}, which shards the model; compression needs a whole "
            "model per process: launch with plain data parallelism (accelerate launch --multi_gpu)."
        )
    return accelerator


def process_ranks() -> tuple[int, int, int]:
    """Rank of this process, their number, and the rank on this node: where lmms-eval reads them, the environment.

    (accelerate knows of a single process when torchrun starts several on a machine without CUDA.)
    """
    rank, size, local = (int(os.environ.get(name, default)) for name, default in _RANKS)
    return rank, size, local


def placement(arguments: Arguments, stock_map: str, processes: int, local_process: int) -> tuple[torch.device, str]:
    """Device of the inputs, and device map of the model.

    Parameters
    ----------
    arguments : Arguments
    stock_map : str
        Device map of lmms-eval's wrapper on CUDA.
    processes, local_process : int
        Processes of this run, and the index of this one on its node.
    """
    cuda = torch.cuda.is_available()
    wanted = arguments.device_map or arguments.device
    if wanted is None:
        wanted = stock_map if cuda else "cpu"
    if processes > 1:
        device = f"cuda:{local_process}" if cuda and not wanted.startswith("cpu") else "cpu"
        return torch.device(device), device
    if wanted in ("auto", "balanced", "balanced_low_0", "sequential"):
        return torch.device("cuda" if cuda else "cpu"), wanted
    return torch.device(wanted), wanted


def dtype_for(arguments: Arguments, stock_dtype: str, device: torch.device) -> str | torch.dtype:
    """Precision of the weights: as asked, else as lmms-eval's wrapper; the demo model runs in float32 on a CPU."""
    name = arguments.dtype
    if name is None:
        name = "float32" if arguments.pretrained == DEMO and device.type == "cpu" else stock_dtype
    return name if name == "auto" else getattr(torch, name)


def log_versions() -> None:
    """Log what determines the answers and is not in lmms-eval's results."""
    packages = ("kvcomp-eval", "lmms-eval", "torch", "transformers", "accelerate", "qwen-vl-utils")
    logger.info("Versions: " + ", ".join(f"{package} {version(package)}" for package in packages))
