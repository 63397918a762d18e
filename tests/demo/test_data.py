"""The procedural data: deterministic, disjoint from training, of the promised size."""

from __future__ import annotations

import numpy as np
import pytest

from kvcomp_eval.demo import heldout, prompts, scenes
from kvcomp_eval.demo.build import build_processor, build_tokenizer
from kvcomp_eval.demo.train import TRAIN_SPLIT


@pytest.mark.parametrize("task", heldout.TASKS)
def test_document_and_its_images_are_made_from_the_index_alone(task):
    first, again = heldout.document(task, 7), heldout.document(task, 7)
    assert first == again
    for image, same in zip(heldout.render_images(first), heldout.render_images(again), strict=True):
        assert np.array_equal(image, same)


def test_documents_differ_from_each_other():
    answers = [heldout.document("describe", index)["answer"] for index in range(200)]
    assert len(set(answers)) == 200


def test_held_out_scenes_are_disjoint_from_training_scenes():
    """The splits' seed sequences differ in their first word; so no 5 x 5 scene is drawn twice."""
    assert TRAIN_SPLIT != heldout.HELD_OUT_SPLIT
    held_out = {
        scene.objects.tobytes()
        for task in heldout.TASKS
        for index in range(100)
        for scene in heldout._scenes(heldout._generator(task, index), 6)
    }
    training = {
        scenes.random_scene(np.random.default_rng([TRAIN_SPLIT, 0, step, rank]), 5).objects.tobytes()
        for step in range(2000)
        for rank in range(2)
    }
    assert len(held_out) == 1800
    assert not held_out & training


def test_images_show_the_scene_that_the_answer_names():
    """The pixel in the middle of a large object has the object's colour, up to noise."""
    scene = scenes.Scene(np.array([[[1, 0, 0], [scenes.EMPTY] * 3], [[scenes.EMPTY] * 3, [1, 2, 1]]]))
    image = scenes.render(scene, np.random.default_rng(0)).astype(int)
    assert np.abs(image[28, 28] - scenes.COLOUR_VALUES[0]).max() <= 25
    assert np.abs(image[84, 84] - scenes.COLOUR_VALUES[2]).max() <= 25
    assert np.abs(image[28, 84] - (50 + 150 * 84 / 280, 110, 50 + 150 * 28 / 280)).max() <= 12
    assert scene.phrase(0, 0) == "large red circle"
    assert scene.phrase(0, 1) is None
    assert scene.occupied() == [(0, 0), (1, 1)]


def test_golden_answers():
    empty = [scenes.EMPTY] * 3
    one = scenes.Scene(np.array([[[0, 0, 0], [1, 2, 4]], [empty, empty]]))
    two = scenes.Scene(np.array([[empty, [0, 5, 5]], [empty, [1, 7, 1]]]))
    assert prompts._row_text(one, 0) == "column one small red circle , column two large blue ring"
    assert prompts._describe_text(one) == (
        "first row : column one small red circle , column two large blue ring . second row : empty ."
    )
    assert prompts._across_text([one, two], 0, 0) == "image 1 : small red circle , image 2 : empty ."


@pytest.mark.parametrize("kind", prompts.KINDS)
def test_answers_have_three_tokens_and_questions_name_the_image_last(kind):
    tokenizer = build_tokenizer()
    rng = np.random.default_rng(3)
    for _ in range(20):
        item = prompts.make_question(kind, [scenes.random_scene(rng, 5) for _ in range(5)], rng)
        answer, question = tokenizer(item.answer).input_ids, tokenizer(item.question).input_ids
        assert len(answer) >= 3
        assert 10 <= len(question) <= 24
        assert tokenizer.unk_token_id not in answer + question
        assert tokenizer.decode(answer) == item.answer
        if kind != "across":
            assert item.question.split()[-3] == "image"


def test_unknown_kind_and_task_are_refused():
    scene = scenes.random_scene(np.random.default_rng(0), 2)
    with pytest.raises(ValueError, match="Unknown question kind 'count'; choose one of what, colour"):
        prompts.make_question("count", [scene], np.random.default_rng(0))
    with pytest.raises(ValueError, match="Unknown demo task 'change'; choose one of vqa, describe, across"):
        heldout.document("change", 0)


def test_prompt_lengths_are_those_that_the_papers_defaults_fit():
    processor = build_processor()
    for task in heldout.TASKS:
        for index in range(10):
            doc = heldout.document(task, index)
            words = len(processor.tokenizer(doc["question"]).input_ids)
            length = 2 + doc["images"] * (2 + 100) + words + 3
            assert 450 <= length <= 750
