"""What lmms-eval finds of this package: the entry point for model ids, and the patch that makes our tasks known.

lmms-eval calls :func:`manifests` whenever ``lmms_eval.models`` is imported, also for commands that only list things.
So this module imports no torch and never raises: one exception here would make lmms-eval drop the models of *every*
plug-in.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcomp_eval.model_wrappers import FAMILIES, model_ids, split_model_id

if TYPE_CHECKING:
    from lmms_eval.models.registry_v2 import ModelManifest

WRAPPERS = "kvcomp_eval.model_wrappers"
TASKS = "kvcomp_eval.tasks"


def manifests() -> list[ModelManifest]:
    """Declare one chat model per family and method; called by lmms-eval through the ``lmms_eval.models`` entry point.

    Returns
    -------
    list of ModelManifest
        The class path of id ``x`` is ``kvcomp_eval.model_wrappers.x``; lmms-eval imports it when that id is chosen.
    """
    try:
        from lmms_eval.models.registry_v2 import ModelManifest

        found = [ModelManifest(model_id=name, chat_class_path=f"{WRAPPERS}.{name}") for name in model_ids()]
    except Exception as error:
        _warn(f"kvcomp-eval could not declare its models to lmms-eval: {error!r}")
        return []
    if "torch" in sys.modules:  # an evaluation; importing lmms_eval.tasks elsewhere would cost seconds for nothing
        try:
            add_tasks()
        except Exception as error:
            _warn(f"kvcomp-eval could not add its tasks to lmms-eval; use --include_path {task_folder()}: {error!r}")
    return found


def task_folder() -> Path:
    """Return the folder of this package's task YAMLs."""
    spec = importlib.util.find_spec(TASKS)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{TASKS} is not installed; reinstall kvcomp-eval.")
    return Path(next(iter(spec.submodule_search_locations)))


def add_tasks() -> None:
    """Make every ``TaskManager`` of lmms-eval see our tasks, and give our model ids the prompts of the stock ones.

    lmms-eval has no plug-in hook for tasks, so ``TaskManager.initialize_tasks`` is wrapped, once. Tasks choose prompts
    by the literal ``--model`` name (``lmms_eval_specific_kwargs``); for our ids that name becomes the stock wrapper's,
    or ``qwen3_vl_full`` would be asked other questions than ``qwen3_vl``.
    """
    from lmms_eval.tasks import TaskManager

    stock = TaskManager.initialize_tasks
    if getattr(stock, "kvcomp_eval", False):
        return
    ours = str(task_folder())

    @functools.wraps(stock)
    def initialize_tasks(self: Any, include_path: Any = None, include_defaults: bool = True) -> Any:
        paths = [include_path] if isinstance(include_path, str) else list(include_path or [])
        self.model_name = stock_model_name(self.model_name)
        return stock(self, include_path=paths + [ours] * include_defaults, include_defaults=include_defaults)

    initialize_tasks.kvcomp_eval = True  # type: ignore[attr-defined]
    TaskManager.initialize_tasks = initialize_tasks


def stock_model_name(name: str | None) -> str | None:
    """Translate one of our model ids to lmms-eval's id of the same family; any other name is returned as it is."""
    try:
        return FAMILIES[split_model_id(name or "")[0]].stock_id
    except ValueError:
        return name


def _warn(message: str) -> None:
    from loguru import logger

    logger.warning(message)
