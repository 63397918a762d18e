"""lmms-eval finds our models through the entry point and our tasks without a flag."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from kvcomp_eval import model_wrappers, registration
from kvcomp_eval.methods.registry import method_names

FRESH = """
import sys, time
from importlib.metadata import entry_points
started = time.perf_counter()
(entry,) = [e for e in entry_points(group="lmms_eval.models") if e.name == "kvcomp_eval"]
ids = [manifest.model_id for manifest in entry.load()()]
print(len(ids), "torch" in sys.modules, "transformers" in sys.modules, time.perf_counter() - started)
"""


def test_entry_point_is_fast_and_imports_no_torch():
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    count, torch, transformers, seconds = done.stdout.split()
    assert int(count) == len(model_wrappers.model_ids())
    assert (torch, transformers) == ("False", "False")
    assert float(seconds) < 2


def test_every_family_and_method_has_an_id_and_an_open_one():
    ids = {manifest.model_id for manifest in registration.manifests()}
    for family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_onevision", "llava_next"):
        assert {f"{family}_{method}" for method in (*method_names(), "kvcomp")} <= ids
    assert {"full", "snapkv", "hybridkv"} <= set(method_names())


@pytest.mark.parametrize("model_id", model_wrappers.model_ids())
def test_lmms_eval_resolves_every_id_to_its_class(model_id):
    from lmms_eval.models import get_model

    family, method = model_wrappers.split_model_id(model_id)
    found = get_model(model_id, False)
    assert (found.family, found.fixed_method, found.is_simple) == (family, method, False)
    assert found is get_model(model_id, False)


def test_no_built_in_model_is_replaced():
    from lmms_eval.models import AVAILABLE_CHAT_TEMPLATE_MODELS, AVAILABLE_SIMPLE_MODELS

    assert not set(model_wrappers.model_ids()) & {*AVAILABLE_CHAT_TEMPLATE_MODELS, *AVAILABLE_SIMPLE_MODELS}


def test_unknown_id_is_not_an_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'qwen2_5_vl_snapkw'"):
        _ = model_wrappers.qwen2_5_vl_snapkw  # type: ignore[attr-defined]
    with pytest.raises(
        ValueError, match=r"'qwen2_5_vl_snapkw' is not one of ours \(did you mean 'qwen2_5_vl_snapkv'\?\)"
    ):
        model_wrappers.split_model_id("qwen2_5_vl_snapkw")


def test_entry_point_never_raises(monkeypatch):
    def broken() -> None:
        raise RuntimeError("deliberate")

    said: list[str] = []
    monkeypatch.setattr(registration, "_warn", said.append)
    monkeypatch.setattr(registration, "add_tasks", broken)
    assert len(registration.manifests()) == len(model_wrappers.model_ids())
    assert "could not add its tasks to lmms-eval; use --include_path" in said[0]
    monkeypatch.setattr(registration, "model_ids", broken)
    assert registration.manifests() == []
    assert said[1] == "kvcomp-eval could not declare its models to lmms-eval: RuntimeError('deliberate')"


@pytest.fixture(scope="module")
def task_names():
    """Names in our YAMLs."""
    names = set()
    for path in registration.task_folder().rglob("*.yaml"):
        loader = type("Loader", (yaml.SafeLoader,), {})
        loader.add_constructor("!function", lambda _, node: node.value)
        entry = yaml.load(path.read_text(), Loader=loader)
        names |= {entry[key] for key in ("task", "group") if isinstance(entry.get(key), str)}
    return names


@pytest.fixture(scope="module")
def manager():
    """lmms-eval's task index as the command line builds it, with the patch of the entry point."""
    import lmms_eval.evaluator  # noqa: F401
    from lmms_eval.tasks import TaskManager

    return TaskManager(model_name="qwen2_5_vl_hybridkv")


def test_our_tasks_are_found_without_a_flag_and_no_built_in_task_has_their_name(manager, task_names):
    """A built-in task of the same name would win, and stand in the index with its own path."""
    assert task_names
    assert task_names <= set(manager.all_tasks)
    folder = str(registration.task_folder())
    assert all(str(manager._task_index[name]["yaml_path"]).startswith(folder) for name in task_names)


def test_tasks_see_the_stock_name_of_our_models(manager):
    assert manager.model_name == "qwen2_5_vl"
    assert registration.stock_model_name("llava_next_kvcomp") == "llava_hf"
    assert registration.stock_model_name("some_other_model") == "some_other_model"
    assert registration.stock_model_name(None) is None


def test_patch_is_applied_once():
    from lmms_eval.tasks import TaskManager

    registration.add_tasks()
    once = TaskManager.initialize_tasks
    registration.add_tasks()
    assert TaskManager.initialize_tasks is once
    assert not hasattr(once.__wrapped__, "__wrapped__")
