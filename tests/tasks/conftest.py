"""Fixtures: lmms-eval's task index with ours, and folders of benchmark data of the exact schema."""

from __future__ import annotations

import pytest

from tests.tasks import milebench_tree


@pytest.fixture(scope="session")
def task_manager():
    from lmms_eval.tasks import TaskManager

    from kvcomp_eval.registration import task_folder

    return TaskManager(include_path=str(task_folder()), include_defaults=False)


@pytest.fixture
def load(task_manager, monkeypatch, tmp_path):
    """Load one task, its data from the variables given; nothing else is set."""

    def make(name: str, **variables):
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        for variable, value in variables.items():
            monkeypatch.setenv(variable, str(value))
        return task_manager.load_task_or_group(name, "chat")[name]

    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "hf_home"))
    return make


@pytest.fixture(scope="session")
def milebench_root(tmp_path_factory):
    return milebench_tree.write_tree(tmp_path_factory.mktemp("milebench"))
