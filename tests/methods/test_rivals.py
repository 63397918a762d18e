"""Methods that retrieve at every step, at the comparison's budget: entries, reads and index against the tables."""

from __future__ import annotations

import pytest

from kvcomp_eval import attach, make_method
from tests.families import TEXT, prompt_inputs
from tests.test_oracle import STEPS

HEADS = TEXT["num_hidden_layers"] * TEXT["num_key_value_heads"]
DIM = TEXT["hidden_size"] // TEXT["num_attention_heads"]
SHARED = TEXT["num_key_value_heads"]
VECTOR = DIM * 4
ENTRIES, WINDOW = 64, 32


@pytest.fixture(scope="module")
def run(families, images):
    """Decode one prompt of an image and a long text with a method; its report."""
    model, processor = families["qwen2_5_vl"]
    inputs = prompt_inputs("qwen2_5_vl", processor, [[images[1]]], ["a long question " * 12])

    def decode(name, **parameters):
        with attach(model, make_method(name, budget_entries=ENTRIES, **parameters)) as session:
            model.generate(**inputs, **STEPS)
        return session.last_report

    return decode


def remainder(length, size):
    """Tokens that fill no page and stay with the window."""
    return (length - WINDOW) % size


@pytest.mark.parametrize(("name", "size"), [("quest", 16), ("arkvale", 16), ("freekv", 16), ("shadowkv", 8)])
def test_pages_hold_the_budget_and_what_fills_no_page(run, name, size):
    report = run(name)
    length = report.prompt_tokens[0]
    assert remainder(length, size) > 0
    assert report.kept_entries == HEADS * (ENTRIES + remainder(length, size))
    assert report.reads_per_step == HEADS * (32 if name == "shadowkv" else 64)


def test_shadowkv_holds_factors_landmarks_and_one_rotation(run):
    report = run("shadowkv", rank=4)
    covered = report.prompt_tokens[0] - WINDOW - remainder(report.prompt_tokens[0], 8)
    assert report.index_bytes == (HEADS * (covered * 4 / (SHARED * DIM) + covered / 8 + 4) + 2 * covered) * VECTOR
    assert report.overhead_bytes == report.pool_bytes == 0
    assert report.host_bytes == HEADS * covered * VECTOR


def test_shadowkv_takes_the_papers_share_of_the_width(run):
    """160 of 1024, here 2.5 of 16, rounded to even; outliers come on top of the budget."""
    assert run("shadowkv").index_bytes == run("shadowkv", rank=2).index_bytes
    assert run("shadowkv", outliers=2).kept_entries == run("shadowkv").kept_entries + HEADS * 16


def test_infinigen_holds_a_quarter_of_the_keys_columns(run):
    report = run("infinigen")
    prefix = report.prompt_tokens[0] - WINDOW
    assert report.kept_entries == HEADS * ENTRIES
    assert report.reads_per_step == HEADS * 64
    assert report.index_bytes == HEADS * (prefix / 4 + DIM / 4) * VECTOR
    assert report.host_bytes == 2 * HEADS * prefix * VECTOR


def test_magicpig_holds_the_window_the_mean_key_and_one_set_of_planes(run):
    report = run("magicpig", bits=4, tables=20)
    prefix = report.prompt_tokens[0] - WINDOW
    assert report.kept_entries == HEADS * WINDOW
    assert report.index_bytes == HEADS * VECTOR + 4 * DIM * 4 * 20
    assert report.host_bytes == HEADS * prefix * (4 * (2 * DIM + 1) + 2 * 20)
    assert 0 < report.reads_per_step < 2 * HEADS * prefix * TEXT["num_attention_heads"] // SHARED
    assert run("magicpig", bits=8, tables=20).reads_per_step < report.reads_per_step
    assert run("magicpig", sinks=4).kept_entries == HEADS * (WINDOW + 4)


@pytest.mark.parametrize("parameters", [{}, {"dense_layers": 1}, {"window": 9}, {"offload": False}], ids=str)
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("quest", {"page": 24}),
        ("freekv", {}),
        ("infinigen", {}),
        ("shadowkv", {}),
        ("shadowkv", {"outliers": 2}),
        ("magicpig", {"sinks": 4}),
    ],
)
def test_what_is_held_is_what_the_method_declares(run, name, more, parameters):
    report = run(name, **more, **parameters)
    method = make_method(name, budget_entries=ENTRIES, **more, **parameters)
    assert report.kept_entries == HEADS * method.held_entries(report.prompt_tokens[0], TEXT["num_hidden_layers"])
    assert report.prompt_bytes == report.kept_entries * 2 * VECTOR
    assert (report.pool_bytes > report.host_bytes == 0) == ("offload" in parameters)


@pytest.mark.parametrize("name", ["quest", "infinigen", "shadowkv", "magicpig"])
def test_dense_layers_are_counted(run, name):
    report = run(name, dense_layers=1)
    per_layer = HEADS // TEXT["num_hidden_layers"]
    assert report.kept_entries == run(name).kept_entries * 2 // 3 + per_layer * report.prompt_tokens[0]
    assert report.reads_per_step <= run(name).reads_per_step or name == "magicpig"


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("infinigen", {"partial": 1.5}, "partial=1.5 must lie between 0 and 1"),
        ("shadowkv", {"rank": 0}, "rank=0 must be at least 1"),
        ("magicpig", {"bits": 31}, "bits=31 must be at most 30"),
        ("quest", {"dense_layers": -1}, "dense_layers=-1 must be at least 0"),
        ("duoattention", {"recent": 0}, "recent=0 must be at least 1"),
        ("razorattention", {"period": 1}, "period=1 must be at least 2"),
    ],
)
def test_bad_values_are_refused(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        make_method(name, budget_entries=ENTRIES, **parameters)
