"""What a comparison will take, without running it: cells, sizes, memory and time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvcomp_eval.compare.config import Architecture, Cell, Config, budget_text


def print_plan(config: Config, cells: list[Cell], console: Console) -> None:
    """Print one line per row and task, and the sums; nothing is loaded or downloaded."""
    sizes = config.model.architecture or local_architecture(config.model.args.get("pretrained"))
    tokens = config.estimate.prompt_tokens
    table = Table("row", "tasks", "documents", "prompt cache", "planned", title=f"{config.name}: {len(cells)} cells")
    for row in config.rows():
        own = [cell for cell in cells if cell.row == row]
        full = cache_bytes(sizes, tokens)
        share = 1.0 if row.budget is None else min(1.0, row.budget if row.budget <= 1 else row.budget / (tokens or 1))
        table.add_row(
            row.name,
            str(len({cell.task for cell in own})),
            _documents(own),
            budget_text(row.budget),
            "-" if full is None else f"{full * share / 2**20:.2f} MiB",
        )
    console.print(table)
    for task in dict.fromkeys(cell.task for cell in cells):
        limit = next(cell.limit for cell in cells if cell.task == task)
        console.print(f"  {task}: {'all documents' if limit is None else f'{limit} documents'}")
    console.print(f"Seeds: {', '.join(map(str, config.seeds))}. Batch size: {config.batch_size}.")
    console.print(f"Memory: {_memory(config, sizes)}")
    console.print(f"Time: {_time(config, cells)}")


def cache_bytes(sizes: Architecture | None, tokens: int | None) -> int | None:
    """Bytes of an uncompressed prompt cache: 2 x layers x KV heads x width x tokens; None if a size is unknown."""
    if sizes is None or tokens is None:
        return None
    return 2 * sizes.layers * sizes.kv_heads * sizes.head_dim * sizes.bytes_per_value * tokens


def local_architecture(pretrained: Any) -> Architecture | None:
    """Sizes from the configuration of a checkpoint on this machine; None if it is on a hub."""
    from transformers import AutoConfig

    from kvcomp_eval.demo import path as demo_folder

    folder = demo_folder() if pretrained == "demo" else Path(str(pretrained))
    if not (folder / "config.json").is_file():
        return None
    text = AutoConfig.from_pretrained(folder).get_text_config(decoder=True)
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return Architecture(
        layers=text.num_hidden_layers,
        kv_heads=text.num_key_value_heads,
        head_dim=width,
        bytes_per_value=4 if pretrained == "demo" else 2,
        weight_gib=weights / 2**30,
    )


def _documents(cells: list[Cell]) -> str:
    if any(cell.limit is None for cell in cells):
        return "all"
    return str(sum(cell.limit or 0 for cell in cells))


def _memory(config: Config, sizes: Architecture | None) -> str:
    full = cache_bytes(sizes, config.estimate.prompt_tokens)
    if sizes is None or full is None:
        return "unknown; give model.architecture and estimate.prompt_tokens in the file."
    cache = f"{config.batch_size * full / 2**20:.1f} MiB for one uncompressed batch"
    return cache if sizes.weight_gib is None else f"{sizes.weight_gib:.3g} GiB of weights and {cache}."


def _time(config: Config, cells: list[Cell]) -> str:
    seconds = config.estimate.seconds_per_answer
    if seconds is None:
        return "unknown; give estimate.seconds_per_answer in the file."
    if any(cell.limit is None for cell in cells):
        return f"{seconds:g} s for each document of each cell; without a limit their number is known once data is read."
    extra = config.guards.identity + 1 + config.forced
    answers = sum((cell.limit or 0) + extra for cell in cells)
    return f"about {answers * seconds / 60:.0f} min ({answers} answers at {seconds:g} s, guards and walks included)."
