"""A fingerprint changes with what determines answers, and with nothing else."""

from __future__ import annotations

import pytest

from kvcomp_eval.compare.fingerprint import cell_settings, checkpoint_digest, differences, fingerprint
from tests.compare import synthetic


def settings(task=None, weights="w", cell=1, **changes):
    config = synthetic.config(**changes)
    return cell_settings(config, config.cells({synthetic.TASK: [synthetic.TASK]})[cell], task or {}, weights)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"weights": "other"}, "weights"),
        ({"task": {"generation_kwargs": {"max_new_tokens": 9}}}, "task.generation_kwargs"),
        ({"batch_size": 2}, "batch_size"),
        ({"seeds": [3]}, "seed"),
        ({"tasks": [{"task": synthetic.TASK, "limit": 5}]}, "limit"),
        ({"methods": [{"method": "snapkv", "parameters": {"window": 16}}, "random"]}, "method.window"),
        ({"model": {"family": "qwen2_5_vl", "args": {"pretrained": "demo", "max_pixels": 99}}}, "model.max_pixels"),
    ],
)
def test_every_setting_behind_an_answer_changes_it_and_is_named(changes, name):
    assert fingerprint(settings(**changes)) != fingerprint(settings())
    assert [text.split(" was ")[0] for text in differences(settings(), settings(**changes))] == [name]


def test_what_does_not_touch_answers_does_not_change_it():
    changes = {"description": "other", "reference": "random", "guards": {"identity": 0}, "budgets": [0.2]}
    assert fingerprint(settings(**changes)) == fingerprint(settings())


def test_addresses_of_functions_do_not_change_it():
    first = settings(task={"doc_to_text": "<function ask at 0x7f00aa>", "process": settings})
    second = settings(task={"doc_to_text": "<function ask at 0x7f11bb>", "process": settings})
    assert fingerprint(first) == fingerprint(second)
    assert fingerprint(first) != fingerprint(settings(task={"doc_to_text": "<function tell at 0x7f00aa>"}))


def test_a_changed_file_of_a_checkpoint_changes_its_digest(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = checkpoint_digest(str(tmp_path), "main")
    (tmp_path / "config.json").write_text("{ }")
    assert checkpoint_digest(str(tmp_path), "main") != before
    assert checkpoint_digest("org/model", "v1") == "org/model@v1"
