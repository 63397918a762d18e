"""Downloads from a stand-in for the hub: a real HTTP server on loopback, asked by the real client."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.tasks.milebench_tree import write_archive, write_subset

COMMIT = "53c7a58" + "0" * 33
ARCHIVE = "MileBench_part5.tar.gz"

SCRIPT = """
import sys
from kvcomp_eval.data.milebench import find_subset, read_subset
folder = find_subset("WebQA", revision=sys.argv[1])
print(folder, len(read_subset("WebQA", folder)))
"""

TABLE_SCRIPT = """
import sys
from kvcomp_eval.data.sources import Benchmark
from kvcomp_eval.data.tables import load_rows
benchmark = Benchmark("Some", ("KVCOMP_SOME_ROOT",), "some/data", None, "1 GB")
print(list(load_rows(benchmark, ("val-*.jsonl",), ("a",))["a"]))
"""


class Hub(BaseHTTPRequestHandler):
    """Answers the commit list, the file list and the files of one repository."""

    repository = ""
    files: dict[str, bytes] = {}  # noqa: RUF012
    served: tuple[str, ...] = ()

    def do_HEAD(self):
        self.answer(head=True)

    def do_GET(self):
        self.answer(head=False)

    def answer(self, head):
        path = self.path.partition("?")[0]
        type(self).served += (f"{self.command} {path}",)
        api, resolve = f"/api/datasets/{self.repository}", f"/datasets/{self.repository}/resolve/{COMMIT}/"
        if path.startswith(f"{api}/commits/"):
            commit = {"id": COMMIT, "authors": [], "date": "2024-05-01T00:00:00.000Z", "title": "", "message": ""}
            return self.send(json.dumps([commit]).encode(), head)
        if path == f"{api}/tree/{COMMIT}":
            entries = [{"type": "file", "path": name, "size": len(self.files[name]), "oid": "0"} for name in self.files]
            return self.send(json.dumps(entries).encode(), head)
        if path.removeprefix(resolve) in self.files:
            return self.send(self.files[path.removeprefix(resolve)], head)
        self.send_response(404)
        self.send_header("X-Error-Code", "RevisionNotFound")
        self.end_headers()

    def send(self, body, head):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if not head:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    """Serve files as one repository; gives the hub's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def start(repository, files):
        Hub.repository, Hub.files, Hub.served = repository, files, ()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    server.shutdown()
    server.server_close()


@pytest.fixture
def hub(serve, tmp_path):
    write_subset(tmp_path / "tree", "WebQA")
    archive = write_archive(tmp_path / "tree", 5, ("WebQA",), tmp_path).read_bytes()
    return serve("FreedomIntelligence/MileBench", {ARCHIVE: archive, "MileBench_part0.tar.gz": b"another"})


def run(endpoint, home, script, *arguments, offline="0"):
    """Run a script in a fresh process; huggingface_hub reads its variables at import."""
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": offline, "HF_HUB_DISABLE_XET": "1"}
    left_out = ("MILEBENCH", "PROXY")
    kept = {name: value for name, value in os.environ.items() if not any(word in name.upper() for word in left_out)}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**kept, **own}, timeout=240)


def fetch(endpoint, home, revision="53c7a58"):
    return run(endpoint, home, SCRIPT, revision)


def served_files():
    return {line.rpartition("/")[2] for line in Hub.served if "resolve" in line}


def test_table_is_read_from_its_own_files_only_and_offline_after_that(serve, tmp_path):
    shards = {f"data/val-0000{number}-of-00002.jsonl": b'{"a": %d}\n' % number for number in range(2)}
    hub = serve("some/data", {"README.md": b"text", "data/train-00000-of-00001.jsonl": b"{}", **shards})
    done = run(hub, tmp_path, TABLE_SCRIPT)
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n"), done.stderr
    assert served_files() == {"val-00000-of-00002.jsonl", "val-00001-of-00002.jsonl"}
    assert f"Some: some/data at {COMMIT}" in done.stderr
    assert run(hub, tmp_path, TABLE_SCRIPT, offline="1").stdout == "[0, 1]\n"


def test_half_a_table_in_the_cache_is_not_taken_for_the_whole(serve, tmp_path):
    hub = serve("some/data", {"val-00000-of-00002.jsonl": b'{"a": 0}\n'})
    last = run(hub, tmp_path, TABLE_SCRIPT).stderr.strip().splitlines()[-1]
    assert "is one of 2 files, and 1 are there; fetch the others" in last


def test_only_the_archive_of_the_subset_at_the_pinned_revision(hub, tmp_path):
    done = fetch(hub, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "home" / "kvcomp_eval" / "milebench" / "53c7a58" / "WebQA"), "2"]
    assert served_files() == {ARCHIVE}
    Hub.served = ()
    assert fetch(hub, tmp_path / "home").returncode == 0
    assert Hub.served == (), "the second time nothing is asked"


def test_unknown_revision_says_so_and_how_else(hub, tmp_path):
    done = fetch(hub, tmp_path / "home", "abcdef0")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "MileBench/WebQA not found" in last
    assert "KVCOMP_MILEBENCH_ROOT" in last
    assert "3.37 GB" in last
    assert "the hub does not know the revision" in last


def test_unreachable_hub_says_so(tmp_path):
    done = fetch("http://127.0.0.1:9", tmp_path / "home")
    assert "MileBench/WebQA not found" in done.stderr.strip().splitlines()[-1]
