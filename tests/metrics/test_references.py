"""The store of uncompressed answers: kept across runs and crashes, never mixed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from kvcomp_eval.metrics.references import Fingerprint, ReferenceMismatch, ReferenceStore, document_hash

SETTINGS = Fingerprint(
    model="demo",
    revision="abc",
    dtype="float32",
    task="demo_describe",
    processor={"max_pixels": 100},
    generation={"max_new_tokens": 8, "until": ("\n\n",)},
)


@pytest.fixture
def path(tmp_path):
    """A store with two answers; one holds characters that some functions take for line ends."""
    store = ReferenceStore(tmp_path / "references.jsonl", SETTINGS)
    store.add(0, "h0", "a red ring\u2028\x85\nüber", [1, 2])
    store.add(1, "h1", "", [])
    return store.path


def test_answers_are_read_back(path):
    store = ReferenceStore(path, SETTINGS)
    assert len(store) == 2
    found = store.get(0, "h0")
    assert (found.answer, found.tokens) == ("a red ring\u2028\x85\nüber", (1, 2))
    assert store.get(2, "h2") is None
    assert 1 in store
    assert 2 not in store


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "other"),
        ("revision", "def"),
        ("dtype", "bfloat16"),
        ("task", "other"),
        ("processor", {"max_pixels": 200}),
        ("generation", {"max_new_tokens": 9}),
        ("versions", {"torch": "0"}),
    ],
)
def test_every_other_setting_is_refused(path, name, value):
    with pytest.raises(ReferenceMismatch, match=rf"other settings \({name}: stored"):
        ReferenceStore(path, replace(SETTINGS, **{name: value}))
    assert replace(SETTINGS, **{name: value}).digest != SETTINGS.digest


def test_folder_holds_one_file_per_setting(tmp_path):
    first = ReferenceStore(tmp_path, SETTINGS)
    second = ReferenceStore(tmp_path, replace(SETTINGS, dtype="bfloat16"))
    assert first.path != second.path
    first.add(0, "h", "x", [1])
    assert len(ReferenceStore(tmp_path, SETTINGS)) == 1
    assert len(ReferenceStore(tmp_path, second.fingerprint)) == 0


def test_changed_document_is_refused(path):
    with pytest.raises(ReferenceMismatch, match="document 0 of task demo_describe is not the one"):
        ReferenceStore(path, SETTINGS).get(0, "changed")


def test_second_answer_must_be_the_same(path):
    store = ReferenceStore(path, SETTINGS)
    before = path.read_bytes()
    store.add(1, "h1", "", [])
    assert path.read_bytes() == before
    with pytest.raises(ReferenceMismatch, match="two different answers to document 1"):
        store.add(1, "h1", "other", [3])


@pytest.mark.parametrize("kept", [1, 10, 30])
def test_torn_last_line_is_dropped_and_answered_again(path, kept):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:kept])
    store = ReferenceStore(path, SETTINGS)
    assert len(store) == 1
    store.add(1, "h1", "again", [4])
    assert ReferenceStore(path, SETTINGS).get(1, "h1").answer == "again"


def test_torn_first_line_begins_anew(tmp_path):
    path = tmp_path / "references.jsonl"
    path.write_text('{"fingerp')
    ReferenceStore(path, SETTINGS).add(0, "h", "x", [1])
    assert len(ReferenceStore(path, SETTINGS)) == 1


def test_broken_line_inside_is_an_error(path):
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], "{broken", *lines[2:]]))
    with pytest.raises(ValueError, match="line 2 is not an answer"):
        ReferenceStore(path, SETTINGS)


def test_any_other_file_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"answer": 1}\n')
    with pytest.raises(ReferenceMismatch, match="not a reference store"):
        ReferenceStore(path, SETTINGS)
    assert path.read_text() == '{"answer": 1}\n'


def test_killed_writer_leaves_whole_answers(tmp_path):
    """A process that dies in the middle of a line: what it finished is there, the next run goes on."""
    path = tmp_path / "references.jsonl"
    code = (
        "import os, sys; from kvcomp_eval.metrics.references import *\n"
        "store = ReferenceStore(sys.argv[1], Fingerprint('m', 'r', 'd', 't', versions={}))\n"
        "store.add(0, 'h', 'kept', [1])\n"
        "with open(sys.argv[1], 'a') as file: file.write('{\"doc_id\": \"1\"')\n"
        "os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    assert not path.read_bytes().endswith(b"\n")
    store = ReferenceStore(path, Fingerprint("m", "r", "d", "t", versions={}))
    assert store.get(0, "h").answer == "kept"
    assert len(store) == 1


def test_document_hash_sees_texts_and_pixels():
    picture = Image.fromarray(np.zeros((2, 3, 3), np.uint8))
    same = {"question": "what?", "images": [picture.copy()]}
    assert document_hash({"images": [picture], "question": "what?"}) == document_hash(same)
    others = [
        {"question": "what", "images": [picture]},
        {"question": "what?", "images": [picture.resize((3, 3))]},
        {"question": "what?", "images": [picture.transpose(Image.Transpose.TRANSPOSE)]},
        {"question": "what?", "images": [np.zeros((2, 3, 3), np.uint8)]},
        {"question": "what?", "images": [b"\x00"]},
    ]
    assert len({document_hash(document) for document in [same, *others]}) == 6
    with pytest.raises(TypeError):
        document_hash({"question": object()})


def test_lines_are_plain_json(path):
    header, first, _ = path.read_text(encoding="utf-8").split("\n")[:3]
    assert json.loads(header)["fingerprint"]["generation"] == {"max_new_tokens": 8, "until": ["\n\n"]}
    assert json.loads(first)["tokens"] == [1, 2]
