"""Where MileBench is looked for, and what is said when something is wrong with it."""

from __future__ import annotations

import json
import shutil

import pytest

from kvcomp_eval.data import milebench
from kvcomp_eval.data.sources import DataDamaged, DataNotFound
from tests.tasks.milebench_tree import write_archive, write_subset

SUBSET = "WebQA"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for subset in (SUBSET, "TQA", "DocVQA"):
        write_subset(root, subset)
    return root


@pytest.fixture
def copy(tree, tmp_path):
    """A tree that a test may damage."""
    return shutil.copytree(tree, tmp_path / "copy")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    for variable in milebench.VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def edit(root, change):
    """Change the annotation of the subset."""
    path = root / SUBSET / f"{SUBSET}.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def read(root, variant="test"):
    return milebench.read_subset(SUBSET, milebench.find_subset(SUBSET, str(root)), variant)


def test_parts_hold_29_subsets_once():
    assert len(milebench.SUBSETS) == 29
    assert sum(map(len, milebench.PARTS)) == 29
    assert len(milebench.PARTS) == len(milebench.PART_SIZES) == 6
    paper = {subset: milebench.SUBSETS[subset] for subset in ("CLEVR-Change", "MMCoQA", "SlideVQA", "WebQA")}
    assert paper == {"CLEVR-Change": 1, "MMCoQA": 2, "SlideVQA": 4, "WebQA": 5}


@pytest.mark.parametrize("variable", milebench.VARIABLES)
def test_tree_named_by_a_variable(tree, monkeypatch, variable):
    monkeypatch.setenv(variable, str(tree))
    assert milebench.find_subset(SUBSET) == tree / SUBSET


def test_given_root_wins_over_the_variables(tree, copy, monkeypatch):
    monkeypatch.setenv(milebench.VARIABLES[0], str(tree))
    assert milebench.find_subset(SUBSET, str(copy)) == copy / SUBSET


def test_tree_in_a_folder_called_milebench(tree, tmp_path):
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "MileBench").symlink_to(tree)
    assert milebench.find_subset(SUBSET, str(tmp_path / "up")) == tmp_path / "up" / "MileBench" / SUBSET


@pytest.mark.parametrize("name", ["", "MileBench_part5.tar.gz"])
def test_archive_gives_the_asked_subset_only(tree, tmp_path, name):
    write_archive(tree, 5, ("TQA", SUBSET), tmp_path / "archives")
    folder = milebench.find_subset(SUBSET, str(tmp_path / "archives" / name))
    assert milebench.read_subset(SUBSET, folder) == [
        {**sample, "images": [image.replace(str(tree / SUBSET), str(folder)) for image in sample["images"]]}
        for sample in read(tree)
    ]
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [SUBSET]
    assert milebench.find_subset(SUBSET, str(tmp_path / "archives")) == folder, "extracted once"


def test_missing_data_is_one_error_with_paths_variable_and_size(tmp_path):
    with pytest.raises(DataNotFound) as caught:
        milebench.find_subset("CLEVR-Change", str(tmp_path))
    message = str(caught.value)
    for part in (
        "MileBench/CLEVR-Change not found",
        str(tmp_path / "CLEVR-Change"),
        "KVCOMP_MILEBENCH_ROOT",
        "CLEVR-Change/CLEVR-Change.json",
        "2.63 GB (MileBench_part1.tar.gz)",
        "FreedomIntelligence/MileBench",
        "HF_HUB_OFFLINE is set",
    ):
        assert part in message


def test_missing_data_without_any_root_names_the_variable():
    with pytest.raises(DataNotFound, match="nowhere, since KVCOMP_MILEBENCH_ROOT is not set"):
        milebench.find_subset(SUBSET)


def test_unknown_subset_lists_what_there_is():
    with pytest.raises(ValueError, match=r"no subset 'WebVQA'; it has .*WebQA"):
        milebench.find_subset("WebVQA")


def test_archive_without_the_subset(tree, tmp_path):
    path = write_archive(tree, 5, ("DocVQA",), tmp_path)
    with pytest.raises(DataDamaged, match=r"holds no folder 'WebQA'; it holds DocVQA"):
        milebench.find_subset(SUBSET, str(path))


def test_truncated_archive_leaves_nothing(tree, tmp_path):
    path = write_archive(tree, 5, (SUBSET,), tmp_path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataDamaged, match=r"MileBench_part5.tar.gz is truncated or damaged"):
        milebench.find_subset(SUBSET, str(path))
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_archive_that_is_none(tmp_path):
    (tmp_path / "MileBench_part5.tar.gz").write_text("not a tar")
    with pytest.raises(DataDamaged, match="is truncated or damaged"):
        milebench.find_subset(SUBSET, str(tmp_path))


def test_missing_images_are_counted_and_listed(copy):
    for image in sorted((copy / SUBSET / "images" / "1").iterdir())[:2]:
        image.unlink()
    with pytest.raises(DataDamaged, match=r"names 2 images that are not there, such as .*astronaut.png.*part5"):
        read(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["meta_data"].update(num_sample=200), "has 2 samples and says 200"),
        (lambda content: content["data"][1].update(task_instruction_id=7), "sample number 1: there is no 7"),
        (lambda content: content["data"][0].pop("task_instance"), "sample number 0: there is no 'task_instance'"),
        (lambda content: content.update(data=[]), "has no samples"),
        (lambda content: content.pop("data"), "needs the keys 'meta_data' and 'data'"),
    ],
)
def test_annotation_that_does_not_fit(copy, change, message):
    edit(copy, change)
    with pytest.raises(DataDamaged, match=message):
        read(copy)


def test_broken_json(copy):
    (copy / SUBSET / f"{SUBSET}.json").write_text('{"data": [')
    with pytest.raises(DataDamaged, match=r"WebQA.json is not valid JSON"):
        read(copy)


@pytest.mark.parametrize("form", [lambda texts: dict(enumerate(texts)), lambda texts: {"0": texts[0], "1": texts[1]}])
def test_instructions_may_be_a_dict(copy, form):
    edit(
        copy,
        lambda content: content["meta_data"].update(task_instruction=form(content["meta_data"]["task_instruction"])),
    )
    assert [sample["instruction"] for sample in read(copy)][1] == "Look, then answer."


def test_instruction_may_be_one_string(copy):
    def change(content):
        content["meta_data"]["task_instruction"] = "Answer."
        content["data"][1]["task_instruction_id"] = 0

    edit(copy, change)
    assert {sample["instruction"] for sample in read(copy)} == {"Answer."}


def test_unknown_variant(tree):
    with pytest.raises(ValueError, match="variant='combined' is not one of test, adv, combined_1"):
        read(tree, "combined")
