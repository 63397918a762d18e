"""Documents about one image or video are resampled together."""

from __future__ import annotations

import json

import numpy as np
import pytest
from lmms_eval.protocol import ChatMessages
from PIL import Image

from kvcomp_eval.compare.clusters import document_clusters, visuals_of
from kvcomp_eval.compare.gate import NOT_SHOWN, NOT_WORSE, baseline_of, compare
from kvcomp_eval.compare.journal import read_lines
from kvcomp_eval.compare.leaderboard import FIDELITY, leaderboard
from kvcomp_eval.compare.record import CellRecord
from kvcomp_eval.compare.report.tables import difference, interval, summary_table, task_table
from kvcomp_eval.compare.results import read_run
from tests.compare import synthetic

#: Documents of one picture fail together.
CHANGED = {"full": [0] * 12, "snapkv @ 20 %": [0, 0, 0, 5, 5, 5, 0, 0, 0, 9, 9, 9]}


def chat(*content):
    return ChatMessages(messages=[{"role": "user", "content": [*content, {"type": "text", "text": "What?"}]}])


def image(pixels):
    return {"type": "image", "url": Image.fromarray(np.asarray(pixels, np.uint8))}


def test_images_are_told_by_their_pixels():
    red, wide = image([[255, 0], [0, 0]]), image([[255, 0, 0, 0]])
    assert visuals_of(chat(red, red)) == visuals_of(chat(image([[255, 0], [0, 0]])))
    assert len(visuals_of(chat(red, wide))) == 2
    assert visuals_of(chat()) == []


def test_videos_are_told_by_their_file_wherever_it_lies_and_not_by_their_time_range(tmp_path):
    for folder, content in (("here", "frames"), ("there", "frames"), ("other", "more frames")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "clip.mp4").write_text(content)
    here, there, other = (str(tmp_path / folder / "clip.mp4") for folder in ("here", "there", "other"))
    first = visuals_of(chat({"type": "video", "url": here, "start_time": 0.0, "end_time": 1.0}))
    assert first == visuals_of(chat({"type": "video", "url": there, "start_time": 5.0}))
    assert first != visuals_of(chat({"type": "video", "url": other}))


def test_documents_that_share_an_image_through_others_are_one_cluster():
    record, other = CellRecord("a"), CellRecord("b")
    for document, visuals in enumerate([["x"], ["x", "y"], ["y"], [], ["z"]]):
        record.answers["t", document] = {"visuals": visuals}
        other.answers["t", document] = {}  # of a journal that did not record them
    found = document_clusters([record, other])
    assert len(set(found.values())) == 3
    assert found["t", 0] == found["t", 1] == found["t", 2]
    assert found == document_clusters([other, record])


def written(folder, visuals, changed=CHANGED):
    """A run whose answers name these pictures: document -> list."""
    synthetic.write_run(folder, changed)
    lines = list(read_lines(folder / "journal.jsonl"))
    for line in lines:
        if line["kind"] == "answer":
            line["visuals"] = visuals(line["doc_id"])
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_run(folder)


@pytest.fixture
def boards(tmp_path):
    """Leaderboards of one picture per document, and of one per three documents."""
    alone = written(tmp_path / "alone", lambda document: [f"picture {document}"])
    shared = written(tmp_path / "shared", lambda document: [f"picture {document // 3}"])
    return leaderboard(alone), leaderboard(shared)


def entry(board, name="snapkv @ 20 %"):
    return next(row for row in board["summary"] if row["name"] == name)["measures"][FIDELITY]


def test_shared_images_widen_intervals_and_leave_means(boards):
    alone, shared = map(entry, boards)
    assert alone["value"] == shared["value"]
    assert (alone["documents"], alone["clusters"]) == (12, 12)
    assert (shared["documents"], shared["clusters"]) == (12, 4)
    assert shared["high"] - shared["low"] > 1.4 * (alone["high"] - alone["low"])
    widths = [found["vs_full"]["high"] - found["vs_full"]["low"] for found in (alone, shared)]
    assert widths[1] > 1.4 * widths[0]


def test_the_legends_name_the_clusters_where_they_are_not_the_documents(boards):
    sentence = "12 documents share images or videos: the 4 groups of them were resampled"
    for board, is_shared in zip(boards, (False, True), strict=True):
        for table in (summary_table(board), task_table(board, synthetic.TASK)):
            assert (sentence in table.legend) == is_shared


def test_documents_that_all_share_one_image_have_no_interval(tmp_path):
    found = entry(leaderboard(written(tmp_path, lambda document: ["picture"])))
    assert (found["low"], found["high"], found["clusters"]) == (None, None, 1)
    assert "[" not in interval(found) + difference(found["vs_full"])


def test_the_gate_resamples_clusters_too(tmp_path):
    before = {"full": [0] * 12, "snapkv @ 20 %": [0] * 12}
    baseline = json.loads(json.dumps(baseline_of(written(tmp_path / "before", lambda document: ["picture"], before))))
    changed = written(tmp_path / "changed", lambda document: ["picture"])
    found = [verdict.state for verdict in compare(baseline, changed, margin=0.9) if verdict.row != "full"]
    assert found == [NOT_SHOWN, NOT_SHOWN]
    same = written(tmp_path / "same", lambda document: ["picture"], before)
    assert {verdict.state for verdict in compare(baseline, same, margin=0.0)} == {NOT_WORSE}
