"""lmms-eval's tasks for a comparison: groups resolved to single tasks, each loaded once for all cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcomp_eval.compare.config import Config, ConfigError
from kvcomp_eval.methods.registry import suggest


def task_manager(config: Config) -> Any:
    """lmms-eval's index of tasks, with the prompts that the stock wrapper of the family gets.

    Only our own tasks are indexed if the configuration names no other: reading all of lmms-eval's takes ten seconds.
    """
    from lmms_eval.tasks import TaskManager

    from kvcomp_eval.registration import add_tasks, task_folder

    add_tasks()
    name = f"{config.model.family}_kvcomp"
    ours = TaskManager("WARNING", include_path=str(task_folder()), include_defaults=False, model_name=name)
    if all(entry.task in ours.task_index for entry in config.tasks):
        return ours
    return TaskManager("WARNING", model_name=name)


def resolve_tasks(manager: Any, names: Sequence[str]) -> dict[str, list[str]]:
    """Task, group or tag -> names of its single tasks; reads YAML files only, no data.

    Raises
    ------
    ConfigError
        Unknown name, a group that overrides settings of its tasks, or one task reached twice.
    """
    leaves = {name: _leaves(manager, name) for name in names}
    flat = [leaf for group in leaves.values() for leaf in group]
    twice = sorted({leaf for leaf in flat if flat.count(leaf) > 1})
    if twice:
        raise ConfigError(f"tasks: {', '.join(twice)} is reached more than once; drop the task or its group.")
    return leaves


def _leaves(manager: Any, name: str) -> list[str]:
    from lmms_eval.utils import load_yaml_config

    entry = manager.task_index.get(name)
    if entry is None:
        raise ConfigError(
            f"tasks: lmms-eval has no task {name!r}{suggest(name, manager.all_tasks)}; "
            "`lmms-eval --tasks list` prints all."
        )
    if entry["type"] in ("task", "python_task"):
        return [name]
    members = entry["task"] if entry["task"] != -1 else load_yaml_config(entry["yaml_path"], mode="simple")["task"]
    if not all(isinstance(member, str) for member in members):
        raise ConfigError(f"tasks: group {name} overrides settings of its tasks; list its tasks instead of the group.")
    return [leaf for member in members for leaf in _leaves(manager, member)]


class LoadedTasks:
    """Stands where lmms-eval takes a ``TaskManager``: hands out task objects that are loaded once.

    Parameters
    ----------
    manager : TaskManager
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._loaded: dict[str, Any] = {}

    def load(self, name: str) -> Any:
        """The task object, with its data."""
        if name not in self._loaded:
            self._loaded |= self._manager.load_task_or_group([name], "chat")
        return self._loaded[name]

    def load_task_or_group(self, names: Sequence[str], task_type: str = "chat") -> dict[str, Any]:
        """As ``TaskManager`` does it; called by lmms-eval's evaluator."""
        return {name: self.load(name) for name in names}

    def documents(self, name: str, limit: int | None) -> int:
        """How many documents a cell has."""
        count = len(self.load(name).eval_docs_no_media)
        return count if limit is None else min(limit, count)
