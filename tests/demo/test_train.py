"""A few training steps on tiny settings: they learn, resume exactly and export a loadable model."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

from kvcomp_eval.demo import train
from kvcomp_eval.demo.muon import orthogonalise
from kvcomp_eval.demo.schedule import SCHEDULE, Stage, locate, total_steps

TINY = train.TrainConfig(
    schedule=(
        Stage("vision", 2, ((1, 1, 2),), 2e-3, text=False),
        Stage("text", 2, ((1, 1, 2),), 2e-3),
        Stage("frozen", 2, ((1, 2, 2),), 2e-3, 1e-4, vision=False),
    ),
    warmup_steps=2,
    checkpoint_every=3,
    index_layer=0,
    text_overrides={"num_hidden_layers": 1, "intermediate_size": 64},
)


def test_resumed_run_reaches_the_same_weights(tmp_path):
    whole = train.run(0, 1, TINY, tmp_path / "whole")
    train.run(0, 1, TINY, tmp_path / "halves", stop_at=3)
    resumed = train.run(0, 1, TINY, tmp_path / "halves")
    assert whole.step == resumed.step == 6
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    steps = [json.loads(line)["step"] for line in (tmp_path / "halves" / "log-0.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_frozen_stage_leaves_the_vision_tower_alone(tmp_path):
    trainer = train.run(0, 1, TINY, tmp_path, stop_at=4)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.train_step()
    after = trainer.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("language_model" in name for name in changed)
    assert not any("visual" in name for name in changed)


def test_loss_falls_on_one_repeated_batch():
    trainer = train.Trainer(TINY)
    stage = Stage("text", 1, ((1, 1, 2),), 2e-3)
    batch = train.make_batch(trainer.tokenizer, train.np.random.default_rng(0), 1, 1, 2)
    losses = []
    for _ in range(12):
        loss, _ = trainer._loss(batch, stage)
        loss.backward()
        for optimizer in trainer.optimizers.values():
            optimizer.param_groups[0]["lr"] = 3e-3
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


def test_export_writes_a_loadable_half_precision_model(tmp_path):
    trainer = train.run(0, 1, TINY, tmp_path / "run", stop_at=1)
    size = train.export_checkpoint(tmp_path / "run", tmp_path / "model", TINY)
    assert size < 12_000_000
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "model", dtype=torch.float32)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor.half().float()), name
    assert AutoProcessor.from_pretrained(tmp_path / "model").tokenizer.padding_side == "left"


def test_export_without_checkpoint_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No checkpoint in .*: train first"):
        train.export_checkpoint(tmp_path, tmp_path / "model", TINY)


def test_learning_rate_follows_the_schedule():
    assert locate(SCHEDULE, 0)[0].name == "vision"
    last = SCHEDULE[-1]
    middle = total_steps(SCHEDULE) - last.steps // 2
    assert locate(SCHEDULE, middle)[1] == pytest.approx((last.learning_rate + last.final_rate) / 2, rel=0.01)
    with pytest.raises(ValueError, match="is beyond the schedule"):
        locate(SCHEDULE, total_steps(SCHEDULE))


def test_vision_tower_is_taken_from_another_run(tmp_path):
    other = train.run(0, 1, TINY, tmp_path / "other", stop_at=3)
    fresh = train.Trainer(TINY)
    fresh.load_vision(torch.load(tmp_path / "other" / train.CHECKPOINT, weights_only=True))
    for name, tensor in fresh.model.state_dict().items():
        if name.startswith("model.visual."):
            assert torch.equal(tensor, other.model.state_dict()[name]), name
    assert torch.equal(fresh.heads.weight, other.heads.weight)


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 48)])
def test_muon_moves_all_singular_values_near_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrix))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_training_leaves_arithmetic_and_threads_as_they_were(tmp_path):
    threads = torch.get_num_threads()
    train.run(0, 1, TINY, tmp_path, stop_at=1)
    assert torch.tensor(1e-310, dtype=torch.float64) * 1 > 0
    assert torch.get_num_threads() == threads
