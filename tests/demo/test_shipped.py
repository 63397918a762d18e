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


@pytest.mark.parametrize(
    ("task", "metric", "limit", "least"),
    [("vqa", "accuracy", 20, 0.95), ("describe", "object_accuracy", 4, 0.95), ("across", "object_accuracy", 6, 0.9)],
)
def test_held_out_scores_are_those_of_the_card(loaded, task, metric, limit, least):
    from kvcomp_eval.demo.evaluate import evaluate

    scores = evaluate(loaded, task, limit, [("full", 1.0)])["full", 1.0]
    assert scores[metric] >= least
    assert scores["rouge_l"] >= 0.9


def test_compression_shows(loaded):
    """Descriptions need the whole image: at 10 % what one selection keeps is not enough."""
    from kvcomp_eval.demo.evaluate import evaluate

    scores = evaluate(loaded, "describe", 3, [("full", 1.0), ("snapkv", 0.1)])
    assert scores["snapkv", 0.1]["object_accuracy"] < scores["full", 1.0]["object_accuracy"] - 0.2


def test_prompt_is_in_the_promised_range(loaded):
    from kvcomp_eval.demo.heldout import document

    lengths = {document("vqa", i)["images"]: loaded.inputs(document("vqa", i))["input_ids"].shape[1] for i in (0, 5)}
    assert lengths == {5: 540, 6: 644}
