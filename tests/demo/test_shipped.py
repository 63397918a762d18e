"""The shipped weights: they load by the ordinary route; the accuracy they should reach."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvcomp_eval import demo


def test_importing_the_package_does_not_import_torch():
    code = "import sys, kvcomp_eval.demo; kvcomp_eval.demo.path(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_weights_are_small_and_complete():
    names = {file.name for file in demo.path().iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "processor_config.json"} <= names
    assert sum(file.stat().st_size for file in demo.path().iterdir()) <= 12_000_000


@pytest.fixture(scope="module")
def loaded():
    from kvcomp_eval.demo.evaluate import Demo

    return Demo.load(demo.path())


def test_architecture_is_what_the_card_says(loaded):
    text = loaded.model.config.text_config
    assert type(loaded.model).__name__ == "Qwen2_5_VLForConditionalGeneration"
    assert (text.num_hidden_layers, text.num_attention_heads, text.num_key_value_heads) == (6, 4, 2)
    assert text.hidden_size // text.num_attention_heads == 32


@pytest.mark.parametrize(("task", "metric", "limit"), [("vqa", "accuracy", 12), ("describe", "object_accuracy", 2)])
def test_held_out_scores_are_those_of_the_card(loaded, task, metric, limit):
    """The interim weights are not trained to the end: the card says how far, and this holds it to that."""
    from kvcomp_eval.demo.evaluate import evaluate

    scores = evaluate(loaded, task, limit, [("full", 1.0)])["full", 1.0]
    assert 0.05 <= scores[metric] <= 0.6
    assert scores["rouge_l"] >= 0.4


def test_prompt_is_in_the_promised_range(loaded):
    from kvcomp_eval.demo.heldout import document

    for index, length in ((0, 530), (5, 632)):
        prompt = loaded.inputs(document("vqa", index))["input_ids"].shape[1]
        assert prompt == length
