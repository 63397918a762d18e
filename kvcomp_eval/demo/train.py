"""Train the demo model on a CPU: ``python -m kvcomp_eval.demo.train --help``.

Seeded, step-based and resumable: the data of a step depends on (seed, step, rank) alone, so a resumed run
takes the same path as an uninterrupted one with the same number of processes.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from tqdm import tqdm

from kvcomp_eval.demo.build import build_config, build_model, build_tokenizer, export
from kvcomp_eval.demo.forward import PackedText, raster_order, vision_forward
from kvcomp_eval.demo.muon import Muon
from kvcomp_eval.demo.packing import IGNORE, Batch, make_batch, prefix_ids
from kvcomp_eval.demo.prompts import IMAGES
from kvcomp_eval.demo.scenes import COLOURS, EMPTY, MAX_GRID, SHAPES, SIZES
from kvcomp_eval.demo.schedule import SCHEDULE, Stage, locate, total_steps

TRAIN_SPLIT = 0  # first word of the seed sequence; the held-out set uses another
CHECKPOINT = "checkpoint.pt"
# Auxiliary vision heads: classes of presence, size, colour, shape, row, column.
HEADS = (2, len(SIZES), len(COLOURS), len(SHAPES), MAX_GRID, MAX_GRID)
GROUP_NAMES = ("short", "medium", "describe")


@dataclass(frozen=True)
class TrainConfig:
    """What determines a run; see `schedule.Stage` for the rest."""

    seed: int = 0
    schedule: tuple[Stage, ...] = SCHEDULE
    warmup_steps: int = 30
    muon_factor: float = 10.0
    weight_decay: float = 0.02
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    vision_weight: float = 0.3
    index_weight: float = 0.2
    index_layer: int = 2
    checkpoint_every: int = 50
    text_overrides: dict[str, int] = field(default_factory=dict)


class Trainer:
    """Model, auxiliary heads and optimiser of one process."""

    def __init__(self, config: TrainConfig, rank: int = 0, world: int = 1) -> None:
        self.config, self.rank, self.world = config, rank, world
        self.tokenizer = build_tokenizer()
        self.model = build_model(build_config(self.tokenizer, **config.text_overrides), config.seed)
        hidden = self.model.config.text_config.hidden_size
        self.heads = torch.nn.Linear(hidden, sum(HEADS))
        self.index_head = torch.nn.Linear(hidden, len(IMAGES))
        parameters = [*self.model.parameters(), *self.heads.parameters(), *self.index_head.parameters()]
        blocks = (
            self.model.model.language_model.layers,
            self.model.model.visual.blocks,
            self.model.model.visual.merger,
        )
        matrices = [p for block in blocks for p in block.parameters() if p.ndim == 2]
        others = [p for p in parameters if all(p is not matrix for matrix in matrices)]
        self.parameters = matrices + others
        decay = config.weight_decay
        self.optimizers = {
            "muon": Muon(matrices, weight_decay=decay),
            "adamw": torch.optim.AdamW(others, betas=config.betas, weight_decay=decay, fused=True),
        }
        self.step = 0
        self.cpu_seconds = 0.0

    def state(self) -> dict[str, Any]:
        """Everything needed to resume."""
        return {
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "index_head": self.index_head.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "step": self.step,
            "cpu_seconds": self.cpu_seconds,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        self.index_head.load_state_dict(state["index_head"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.step, self.cpu_seconds = state["step"], state["cpu_seconds"]

    def load_vision(self, state: dict[str, Any]) -> None:
        """Take over the vision tower and its auxiliary heads from another run's checkpoint."""
        tower = {k: v for k, v in state["model"].items() if k.startswith("model.visual.")}
        self.model.load_state_dict(tower, strict=False)
        self.heads.load_state_dict(state["heads"])

    def train_step(self) -> dict[str, float]:
        """Run one optimiser step; return the loss and the token accuracy per segment group."""
        started = time.process_time()
        stage, rate = locate(self.config.schedule, self.step)
        rng = np.random.default_rng([TRAIN_SPLIT, self.config.seed, self.step, self.rank])
        shared = np.random.default_rng([TRAIN_SPLIT, self.config.seed, self.step, 1 << 20])
        samples, images, grid = stage.layouts[int(shared.integers(len(stage.layouts)))]
        describe = bool(shared.random() < stage.describe_share)
        batch = make_batch(self.tokenizer, rng, samples, images, grid, describe, stage.text)
        loss, figures = self._loss(batch, stage)
        loss.backward()
        self._reduce_gradients()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        rate *= min(1.0, (self.step + 1) / self.config.warmup_steps)
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = rate * (self.config.muon_factor if name == "muon" else 1.0)
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.cpu_seconds += time.process_time() - started
        return {"loss": float(loss.detach()), **figures}

    def _loss(self, batch: Batch, stage: Stage) -> tuple[torch.Tensor, dict[str, float]]:
        with torch.set_grad_enabled(stage.vision):
            cells = vision_forward(self.model.model.visual, batch.pixel_values, batch.grid)
        loss = torch.zeros(())
        figures: dict[str, float] = {}
        if stage.vision:
            auxiliary, figures["vision"] = self._vision_loss(cells, batch)
            loss = loss + self.config.vision_weight * auxiliary
        if not stage.text:
            return loss, figures
        prefix = torch.tensor(prefix_ids(self.tokenizer, batch.images, batch.grid))
        packed = PackedText(self.model, prefix, batch)
        tokens = raster_order(cells, batch.grid)
        hidden = packed(
            tokens.reshape(-1, batch.images * tokens.shape[1], tokens.shape[2]), index_layer=self.config.index_layer
        )
        total, count, start = torch.zeros(()), 0.0, len(prefix)
        for name, group in zip(GROUP_NAMES, batch.groups, strict=False):
            length = group.ids[0].numel()
            predicted = hidden[:, start : start + length].view(*group.ids.shape, -1)[:, :, :-1]
            labels = group.labels[:, :, 1:]
            chosen = labels != IGNORE
            logits = self.model.lm_head(predicted[chosen])
            weight = stage.short_weight if name == "short" else 1.0
            total = total + weight * F.cross_entropy(logits, labels[chosen], reduction="sum")
            count += weight * int(chosen.sum())
            figures[name] = float((logits.argmax(-1) == labels[chosen]).float().mean())
            start += length
        index_loss, figures["image"] = self._index_loss(packed)
        return loss + total / count + self.config.index_weight * index_loss, figures

    def _index_loss(self, packed: PackedText) -> tuple[torch.Tensor, float]:
        """A linear head on the image tokens inside the text model: which image is this token in."""
        assert packed.index_states is not None
        states = F.rms_norm(packed.index_states, packed.index_states.shape[-1:])
        logits = self.index_head(states)
        target = torch.arange(logits.shape[1])[None, :, None].expand(logits.shape[:3])
        return F.cross_entropy(logits.flatten(0, 2), target.flatten()), float(
            (logits.argmax(-1) == target).float().mean()
        )

    def _vision_loss(self, cells: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, float]:
        """Linear heads on merged tokens: is there an object, which one, and where is the cell."""
        count, positions = cells.shape[0], torch.arange(batch.grid**2)
        objects = batch.objects.view(count, -1, 3)
        present = objects[..., 0] != EMPTY
        row, column = (t.expand(count, -1) for t in (positions // batch.grid, positions % batch.grid))
        attributes = [torch.where(present, objects[..., i], IGNORE) for i in range(3)]
        loss, hits = torch.zeros(()), []
        outputs = self.heads(cells).split(HEADS, dim=-1)
        for logits, target in zip(outputs, (present.long(), *attributes, row, column), strict=True):
            target = target[..., None].expand(-1, -1, logits.shape[2])
            known = target != IGNORE
            loss = loss + F.cross_entropy(logits[known], target[known])
            hits.append(float((logits.argmax(-1) == target)[known].float().mean()))
        return loss, min(hits)

    def _reduce_gradients(self) -> None:
        """Average the gradients over the processes in one all-reduce."""
        if self.world == 1:
            return
        with_gradient = [p.grad for p in self.parameters if p.grad is not None]
        flat = torch.cat([g.flatten() for g in with_gradient])
        dist.all_reduce(flat)
        flat /= self.world
        for gradient, piece in zip(with_gradient, flat.split([g.numel() for g in with_gradient]), strict=True):
            gradient.copy_(piece.view_as(gradient))


def run(
    rank: int, world: int, config: TrainConfig, folder: Path, stop_at: int | None = None, vision: Path | None = None
) -> Trainer:
    """Train one process to the end of the schedule (or to step `stop_at`), resuming from `folder`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
    torch.set_flush_denormal(True)  # of the whole process, and all of its arithmetic: not to be left behind
    try:
        return _run(rank, world, config, folder, stop_at, vision)
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def _run(rank: int, world: int, config: TrainConfig, folder: Path, stop_at: int | None, vision: Path | None) -> Trainer:
    if world > 1:
        dist.init_process_group("gloo", rank=rank, world_size=world)
    trainer = Trainer(config, rank, world)
    file = folder / CHECKPOINT
    if file.exists():
        trainer.load(torch.load(file, weights_only=True))
    elif vision is not None:
        trainer.load_vision(torch.load(vision, weights_only=True))
    end = total_steps(config.schedule) if stop_at is None else stop_at
    folder.mkdir(parents=True, exist_ok=True)
    bar = tqdm(initial=trainer.step, total=end, disable=rank != 0, mininterval=5, desc="train")
    with open(folder / f"log-{rank}.jsonl", "a", encoding="utf-8") as log:
        while trainer.step < end:
            figures = trainer.train_step()
            record = {"step": trainer.step, "stage": locate(config.schedule, trainer.step - 1)[0].name, **figures}
            log.write(json.dumps(record) + "\n")
            bar.set_postfix({k: f"{v:.3f}" for k, v in figures.items()}, refresh=False)
            bar.update()
            if rank == 0 and (trainer.step % config.checkpoint_every == 0 or trainer.step == end):
                log.flush()
                save(trainer.state(), file)
    bar.close()
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()
    return trainer


def save(state: dict[str, Any], file: Path) -> None:
    """Write a checkpoint so that an interrupted write leaves the old one whole."""
    temporary = file.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(file)


def export_checkpoint(folder: Path, destination: Path, config: TrainConfig) -> int:
    """Export the checkpoint in `folder` as a loadable float16 model; return its size in bytes."""
    file = folder / CHECKPOINT
    if not file.exists():
        raise FileNotFoundError(f"No checkpoint in {folder}: train first, or name the folder of a run with --out.")
    trainer = Trainer(config)
    trainer.load(torch.load(file, weights_only=True))
    return export(trainer.model, destination)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(
        prog="python -m kvcomp_eval.demo.train",
        description="Train the demo model from scratch (or resume) on a CPU, then export it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo-run"), help="folder for checkpoint and log; resumes from it"
    )
    parser.add_argument("--export", type=Path, help="folder for the exported float16 model")
    parser.add_argument("--export-only", action="store_true", help="export the latest checkpoint, do not train")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data")
    parser.add_argument("--processes", type=int, default=2, help="data-parallel processes of one thread each")
    parser.add_argument("--vision-from", type=Path, help="checkpoint of another run to take the vision tower from")
    parser.add_argument("--stop-at", type=int, help="stop after this step of the schedule")
    options = parser.parse_args(arguments)
    config = TrainConfig(seed=options.seed)
    if not options.export_only:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29511")
        if options.processes == 1:
            run(0, 1, config, options.out, options.stop_at, options.vision_from)
        else:
            call = (options.processes, config, options.out, options.stop_at, options.vision_from)
            mp.spawn(run, call, nprocs=options.processes)
    if options.export is not None:
        size = export_checkpoint(options.out, options.export, config)
        print(f"Exported {size / 1e6:.2f} MB to {options.export}")


if __name__ == "__main__":
    main()
