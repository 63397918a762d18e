"""Broken images, tables and videos: each has its own error, and videos decode alike with both readers."""

from __future__ import annotations

import numpy as np
import pytest

from kvcomp_eval.data.sources import Benchmark, DataDamaged, DataNotFound
from kvcomp_eval.data.tables import load_rows
from kvcomp_eval.model_wrappers.video import DecordReader, PyAVReader, llava_video, qwen_video
from kvcomp_eval.tasks.base import load_image
from tests.tasks import tables
from tests.tasks.media import CLIPS, clip, photograph

BENCHMARK = Benchmark("Some", ("KVCOMP_SOME_ROOT",), "some/data", None, "1 GB")


@pytest.mark.parametrize("name", CLIPS)
def test_decord_and_pyav_give_the_same_frames(name):
    pytest.importorskip("decord")
    path = str(clip(name))
    decord, pyav = DecordReader(path), PyAVReader(path)
    assert (len(decord), decord.fps) == (len(pyav), pytest.approx(pyav.fps))
    chosen = np.linspace(0, len(pyav) - 1, 9).round().astype(int).tolist()
    np.testing.assert_array_equal(decord.frames(chosen), pyav.frames(chosen))


@pytest.fixture(params=["half", "garbage", "empty", "hole"])
def broken_video(request, tmp_path):
    whole = clip("bikes").read_bytes()
    hole = whole[:100_000] + bytes(200_000) + whole[300_000:]
    content = {"half": whole[: len(whole) // 2], "garbage": b"no video" * 99, "empty": b"", "hole": hole}
    path = tmp_path / "broken.mp4"
    path.write_bytes(content[request.param])
    return str(path)


@pytest.mark.parametrize("without_decord", [False, True])
@pytest.mark.parametrize(
    "read", [lambda path: qwen_video({"video": path, "nframes": 8}, 14), lambda path: llava_video(path, 8)]
)
def test_broken_video_is_named(broken_video, monkeypatch, read, without_decord):
    if without_decord:
        monkeypatch.setitem(__import__("sys").modules, "decord", None)
    with pytest.raises(ValueError, match=r"Video '.*broken.mp4' (cannot be read|is damaged, its frames)"):
        read(broken_video)


def test_broken_image_is_named(tmp_path):
    half = tables.png(photograph("coffee"))[:5000]
    path = tmp_path / "coffee.png"
    path.write_bytes(half)
    with pytest.raises(ValueError, match=r"Image .*coffee.png cannot be read"):
        load_image(str(path))
    with pytest.raises(ValueError, match="Image x.png cannot be read"):
        load_image({"bytes": half, "path": "x.png"})
    with pytest.raises(ValueError, match="Image in the data set cannot be read"):
        load_image({"bytes": b"no image", "path": None})


def test_broken_image_of_a_document(load, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "png", lambda _: b"no image")
    task = load("textvqa_kv", KVCOMP_TEXTVQA_ROOT=tables.write_textvqa(tmp_path))
    assert task.doc_to_text(task.test_docs_no_media()[0]).startswith("<image>")
    with pytest.raises(ValueError, match="cannot be read"):
        task.doc_to_messages(task.test_docs()[0])


def rows(root, **arguments):
    return load_rows(
        BENCHMARK, ("*.jsonl", "*.json", "*.csv", "*.parquet"), ("a", "b"), data_root=str(root), **arguments
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", '{"a": 1, "b": 2}\n{"a": 1, "b"\n', r"t.jsonl cannot be read \(line 2: "),
        ("t.json", '[{"a": 1, "b": 2}', "t.json cannot be read"),
        ("t.parquet", "no parquet", "t.parquet cannot be read"),
        ("t.json", '[{"a": 1}]', "t.json has no column b; it has a"),
        ("t.csv", "a,b\n", "t.csv has no"),
        ("t.xml", "<a/>", "t.xml has an unknown ending; tables are .parquet, .json, .jsonl, .csv"),
    ],
)
def test_broken_table(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataDamaged, match=message):
        rows(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.jsonl", '{"a": "1", "b": "2"}\n{"a": "3", "b": "4"}\n'),
        ("t.json", '[{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]'),
        ("t.json", '{"data": [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]}'),
        ("t.csv", "a,b\n1,2\n3,4\n"),
    ],
)
def test_every_kind_of_table(tmp_path, name, content):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / name).write_text(content)
    assert list(rows(tmp_path)) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


def test_missing_table_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataNotFound) as caught:
        rows(tmp_path)
    for part in ("Some annotations not found", str(tmp_path / "*.jsonl"), "KVCOMP_SOME_ROOT", "1 GB", "HF_HUB_OFFLINE"):
        assert part in str(caught.value)
