"""The benchmarks run, compare like with like, and keep their raw values. Speed is not asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kvcomp_eval.bench.__main__ import main
from kvcomp_eval.bench.backbone import TINY, build_backbone, weight_bytes
from kvcomp_eval.bench.contenders import make_contenders
from kvcomp_eval.bench.decode import decode_steps, fill_caches
from kvcomp_eval.bench.quantities import Latency
from kvcomp_eval.bench.synthetic import image_prompt

CONTENDERS = ["stock", "full", "snapkv", "hybridkv"]


@pytest.mark.parametrize("benchmark", ["decode", "prefill"])
def test_quick_run_reports_every_contender(benchmark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "raw.json"
    assert main([benchmark, "--quick", "--json", str(file)]) == 0
    table = capsys.readouterr().out
    raw = json.loads(file.read_text())
    measured = raw["measurements"]
    assert [(item["dtype"], item["contender"]) for item in measured] == [
        (dtype, name) for dtype in ("fp32", "bf16") for name in CONTENDERS
    ]
    for item in measured:
        assert item["contender"] in table
        assert len(item["latency"]["seconds"]) == 2
        assert min(item["latency"]["seconds"]) <= item["median_seconds"] <= max(item["latency"]["seconds"])
        assert (item["floor_seconds"] is None) == (benchmark == "prefill")
    for dtype in ("fp32", "bf16"):
        device = {item["contender"]: item["cache"]["device"] for item in measured if item["dtype"] == dtype}
        assert device["stock"] == device["full"] > device["hybridkv"] > 0
        assert device["snapkv"] <= 0.1 * device["full"]


def test_full_gives_the_logits_of_stock_and_compression_does_not() -> None:
    length, steps = 400, 4
    model = build_backbone(TINY, torch.float32, length + steps)
    contenders = make_contenders(CONTENDERS, 0.1, model)
    fill_caches(model, contenders, TINY, length, torch.float32, steps)
    taken = decode_steps(model, contenders, length, steps)
    for name in CONTENDERS:
        assert len(taken[name].seconds) == steps
        assert all(0 < inside < whole for inside, whole in zip(taken[name].attention, taken[name].seconds, strict=True))
    stock = torch.cat(taken["stock"].logits)
    full = torch.cat(taken["full"].logits)
    torch.testing.assert_close(full, stock, rtol=0, atol=1e-5)
    assert torch.equal(full.argmax(-1), stock.argmax(-1))
    for name in ("snapkv", "hybridkv"):
        assert (torch.cat(taken[name].logits) - stock).abs().max() > 1e-3


def test_half_of_the_heads_are_dynamic() -> None:
    model = build_backbone(TINY, torch.float32, 401)
    contenders = make_contenders(["hybridkv"], 0.1, model)
    fill_caches(model, contenders, TINY, 400, torch.float32, 1)
    (static,) = contenders[0].cache.details["static"]
    assert static.count(False) == TINY.layers * TINY.kv_heads // 2


REFRESHING = ["rcr", "exact", "quest", "arkvale", "freekv", "infinigen", "shadowkv", "magicpig", "random_refresh"]


@pytest.mark.parametrize("benchmark", ["decode", "prefill"])
def test_methods_that_look_behind_the_attention_run_too(benchmark: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["snapkv", *REFRESHING, "duoattention", "razorattention"]
    budget = ["--budget", "64"] if benchmark == "decode" else []
    assert main([benchmark, "--quick", "--dtypes", "fp32", "--contenders", *names, *budget]) == 0
    table = capsys.readouterr().out
    assert all(f" {name} " in table for name in names)
    assert ("/ snapkv" in table) == (benchmark == "decode")


def test_prompt_ends_with_128_text_tokens() -> None:
    visual = image_prompt(4096).visual[0]
    assert not visual[-128:].any()
    assert visual[-129]
    assert not visual[:16].any()


def test_weights_leave_out_the_input_embedding() -> None:
    model = build_backbone(TINY, torch.bfloat16, 8)
    parameters = sum(weight.numel() for weight in model.parameters())
    assert weight_bytes(model) == 2 * (parameters - TINY.vocabulary * TINY.hidden)


def test_latency_summary() -> None:
    latency = Latency((4.0, 1.0, 2.0, 3.0, 5.0))
    assert (latency.median, latency.spread) == (3.0, 2.0)
    assert Latency((1.5,)).spread == 0.0


def test_unknown_contender_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decode", "--quick", "--contenders", "stock", "snapkw"]) == 2
    assert "Contender 'snapkw' is not known; use some of stock, full, snapkv" in capsys.readouterr().err
