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

#: Endings of files that are code, or made by running it; everything else in a package is data.
NOT_DATA = {".py", ".pyc"}

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is in the standard library from 3.11 on")


def setuptools_table():
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def folder_of(package):
    """Folder of a dotted package name."""
    for folder, mapped in MAPPED.items():
        if package == mapped or package.startswith(f"{mapped}."):
            return ROOT / folder / package.removeprefix(mapped).lstrip(".").replace(".", "/")
    return ROOT / package.replace(".", "/")


def package_folder(path):
    """Nearest folder above a file that is a package; None for folders."""
    return next((up for up in path.parents if (up / "__init__.py").is_file()), None) if path.is_file() else None


def packages_on_disk():
    found = set()
    for top in ("kvcomp_eval", *MAPPED):
        for file in (ROOT / top).rglob("__init__.py"):
            parts = file.parent.relative_to(ROOT).parts
            found.add(".".join([MAPPED.get(parts[0], parts[0]), *parts[1:]]))
    return found


def test_every_package_is_listed():
    assert set(setuptools_table()["packages"]) == packages_on_disk()


def test_mapped_folders_are_those_of_the_project_file():
    assert setuptools_table()["package-dir"] == {package: folder for folder, package in MAPPED.items()}


def test_nothing_lands_at_the_top_of_site_packages_but_the_package():
    assert {name.split(".")[0] for name in setuptools_table()["packages"]} == {"kvcomp_eval"}


def test_every_data_file_is_installed():
    table = setuptools_table()
    for package in table["packages"]:
        folder = folder_of(package)
        installed = {file for pattern in table["package-data"].get(package, ()) for file in folder.glob(pattern)}
        data = {file for file in folder.rglob("*") if package_folder(file) == folder and file.suffix not in NOT_DATA}
        assert data <= installed, f"{package}: {sorted(file.name for file in data - installed)}"


@pytest.mark.parametrize(
    ("package", "pattern"),
    [
        ("kvcomp_eval", "py.typed"),
        ("kvcomp_eval.demo", "weights/*"),
        ("kvcomp_eval.tasks.demo", "*.yaml"),
    ],
)
def test_data_that_the_package_needs_exists(package, pattern):
    assert pattern in setuptools_table()["package-data"][package]
    assert list(folder_of(package).glob(pattern))
