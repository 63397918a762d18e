"""What pyproject.toml installs is what the repository holds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Package -> folder, where they differ from the dotted name.
MAPPED = {
    "configs": "kvcomp_eval.configs",
    "model_wrappers": "kvcomp_eval.model_wrappers",
    "tasks": "kvcomp_eval.tasks",
}

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is in the standard library from 3.11 on")


def setuptools_table():
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def packages_on_disk():
    found = set()
    for top in ("kvcomp_eval", *MAPPED):
        for file in (ROOT / top).rglob("__init__.py"):
            parts = file.parent.relative_to(ROOT).parts
            found.add(".".join([MAPPED.get(parts[0], parts[0]), *parts[1:]]))
    return found


def test_every_package_is_listed():
    assert set(setuptools_table()["packages"]) == packages_on_disk()


def test_nothing_lands_at_the_top_of_site_packages_but_the_package():
    assert {name.split(".")[0] for name in setuptools_table()["packages"]} == {"kvcomp_eval"}


def test_every_task_file_is_package_data():
    patterns = setuptools_table()["package-data"]
    for file in (ROOT / "tasks").rglob("*.yaml"):
        package = ".".join(["kvcomp_eval", *file.parent.relative_to(ROOT).parts])
        assert any(file in file.parent.glob(pattern) for pattern in patterns[package]), file
