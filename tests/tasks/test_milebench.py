"""MileBench through lmms-eval's task objects: documents, prompts, scores."""

from __future__ import annotations

import pytest

from kvcomp_eval.data.milebench import SUBSETS
from kvcomp_eval.tasks.milebench.task import combined_prompt, interleaved_prompt
from tests.tasks import milebench_tree
from tests.tasks.media import photograph

PAPER = {
    "CLEVR-Change": "milebench_clevr_change",
    "Spot-the-Diff": "milebench_spot_the_diff",
    "DocVQA": "milebench_docvqa",
    "SlideVQA": "milebench_slidevqa",
    "MMCoQA": "milebench_mmcoqa",
    "MultiModalQA": "milebench_multimodalqa",
    "WebQA": "milebench_webqa",
    "WikiVQA": "milebench_wikivqa",
}


def members(task_manager, group):
    ((_, tasks),) = task_manager.load_task_or_group(group, "chat").items()
    return tasks


def flat(parts):
    """A prompt in one line: images as <name>."""
    return "".join(part["text"] if part["type"] == "text" else f"<{part['url']}>" for part in parts)


def test_group_of_the_paper(task_manager, load, milebench_root, monkeypatch):
    monkeypatch.setenv("KVCOMP_MILEBENCH_ROOT", str(milebench_root))
    assert {task.subset: name for name, task in members(task_manager, "milebench").items()} == PAPER
    combined = members(task_manager, "milebench_combined_1")
    assert {task.subset for task in combined.values()} == set(PAPER)
    assert {task.variant for task in combined.values()} == {"combined_1"}


def test_group_of_all(task_manager, load, milebench_root, monkeypatch):
    monkeypatch.setenv("KVCOMP_MILEBENCH_ROOT", str(milebench_root))
    tasks = members(task_manager, "milebench_all")
    assert sorted(task.subset for task in tasks.values()) == sorted(SUBSETS)
    assert len(tasks) == 29
    rouge = {task.subset for task in tasks.values() if "rouge_l" in task.aggregation()}
    assert rouge == set(milebench_tree.ROUGE)


def test_images_stand_where_the_context_names_them(load, milebench_root):
    task = load("milebench_webqa", KVCOMP_MILEBENCH_ROOT=milebench_root)
    doc = task.test_docs()[0]
    (turn,) = task.doc_to_messages(doc)
    shape = [part.get("text", "<image>") for part in turn["content"]]
    assert shape == [
        "What's the difference between 2 images? \nGlobal Table: ",
        "<image>",
        " Context: ",
        "<image>",
        " ",
        "<image>",
        " Question: Which animal lies on the sofa?\nChoice list: \nA. a cat\nB. a horse\nC. a bird\nD. a fish"
        "\nYour answer is: ",
    ]
    images = [part["url"] for part in turn["content"] if part["type"] == "image"]
    expected = [photograph(name) for name in ("china", "chelsea", "flower")]
    assert [image.tobytes() for image in images] == [image.tobytes() for image in expected]
    assert task.doc_to_text(doc) == "".join(shape)
    assert [image.tobytes() for image in task.doc_to_visual(doc)] == [image.tobytes() for image in images]


def test_choices_without_letters_only_in_gpr1200(load, milebench_root):
    prompt = load("milebench_gpr1200", KVCOMP_MILEBENCH_ROOT=milebench_root)
    assert "\nChoice list: \na cat\na horse\n" in prompt.doc_to_text(prompt.test_docs()[0])


def test_combined_picture_comes_first(load, milebench_root):
    task = load("milebench_webqa_combined_1", KVCOMP_MILEBENCH_ROOT=milebench_root)
    doc = task.test_docs()[0]
    prompt = task.doc_to_text(doc)
    start = (
        "<image>\nWhat's the difference between 2 images? \nGlobal Table: <Image 1>  Context: <Image 2>  <Image 3>  Que"
    )
    assert prompt.startswith(start)
    (picture,) = task.doc_to_visual(doc)
    assert picture.size == (300, 100)


def test_placeholders_bound_in_order_agree_with_their_numbers():
    context = "a {image#1} b {table#2}{image#3} c"
    assert flat(interleaved_prompt("I", context, ["x", "y", "z"])) == "I\na <x> b <y><z> c"


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (["v", "x", "y"], "I\n<v>a <x> b <y> c"),  # one more: before the context
        (["u", "v", "x", "y"], "I\n<v>a <x> b <y> c"),  # two more: the first is dropped
        (["x"], "I\na <x> b {image#2} c"),  # a placeholder beyond the images stays text
    ],
)
def test_counts_that_do_not_fit(images, expected):
    assert flat(interleaved_prompt("I", "a {image#1} b {image#2} c", images)) == expected


def test_repeated_placeholder_shows_its_image_again():
    assert flat(interleaved_prompt("I", "{image#1} and {image#1}, {i}", ["x"])) == "I\n<x> and <x>, {i}"


def test_combined_prompt_names_images_and_tables():
    assert flat(combined_prompt("I", "{table#1}{image#2}?", ["sheet"], 2)) == "<sheet>\nI\n<Image 1> <Image 2> ?"


@pytest.mark.parametrize(
    ("answer", "official", "sane"),
    [
        ("A. a cat", 1.0, 1.0),
        ("A", 1.0, 1.0),
        ("The answer is A.", 0.0, 1.0),  # the official scorer reads "AA"
        ("", 0.0, 0.0),
        ("C. a cat", 1.0, 0.0),  # text beats letter there
        ("a horse", 0.0, 0.0),
    ],
)
def test_scores_of_given_choices(load, milebench_root, answer, official, sane):
    task = load("milebench_webqa", KVCOMP_MILEBENCH_ROOT=milebench_root)
    scores = task.process_results(task.test_docs_no_media()[0], [answer])
    assert scores == {
        "accuracy": official,
        "milebench_score": official,
        "sane_accuracy": sane,
        "accuracy_few": official,
        "accuracy_medium": None,  # the other sample's level; no sample has many images
    }
    assert scores.keys() == task.aggregation().keys()


def test_number_as_answer(load, milebench_root):
    task = load("milebench_webqa", KVCOMP_MILEBENCH_ROOT=milebench_root)
    doc = task.test_docs_no_media()[1]
    assert doc["answer"] == "1"
    scores = task.process_results(doc, ["12"])  # "1" is found in "12"
    assert scores["accuracy"] == 1.0
    assert scores["sane_accuracy"] == 0.0
    assert scores["accuracy_medium"] == 1.0  # six images


@pytest.mark.parametrize(
    ("answer", "score"),
    [("The two images are identical.", 0.222222), ("there are no changes", 1.0), ("", 0.0)],
)
def test_scores_of_given_descriptions(load, milebench_root, answer, score):
    task = load("milebench_clevr_change", KVCOMP_MILEBENCH_ROOT=milebench_root)
    scores = task.process_results(task.test_docs_no_media()[1], [answer])
    assert scores["rouge_l"] == pytest.approx(score, abs=1e-6)
    assert scores["milebench_score"] == scores["rouge_l_few"] == scores["rouge_l"]


def test_dialogue_answer_is_looked_up_inside_the_prediction(load, milebench_root):
    task = load("milebench_mmcoqa", KVCOMP_MILEBENCH_ROOT=milebench_root)
    doc = task.test_docs_no_media()[1]
    assert task.process_results(doc, ["In Indochina."])["accuracy"] == 1.0
    assert task.process_results(doc, ["In Indochina."])["sane_accuracy"] == 0.0


def test_level_means_skip_other_levels(load, milebench_root):
    task = load("milebench_webqa", KVCOMP_MILEBENCH_ROOT=milebench_root)
    aggregate = task.aggregation()
    assert aggregate["accuracy_few"]([1.0, None, 0.0]) == 0.5
    assert aggregate["accuracy_medium"]([None, None]) is None  # a limit left none of the level


def test_adversarial_variant_reads_its_own_file(task_manager, load, milebench_root):
    load("milebench_webqa", KVCOMP_MILEBENCH_ROOT=milebench_root)
    config = task_manager._get_config("milebench_webqa")
    config["dataset_kwargs"] = {**config["dataset_kwargs"], "variant": "adv"}
    task = config["class"](config=config)
    assert [doc["sample_id"] for doc in task.test_docs()] == ["1", "0"]
