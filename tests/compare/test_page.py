"""The page: its numbers are the results', it loads nothing, and it fits screens of both widths in both schemes."""

from __future__ import annotations

import csv
import json
import re
import shutil

import pytest
import torch
from PIL import Image
from rich.console import Console

from kvcomp_eval.compare.record import read_records
from kvcomp_eval.compare.report.behaviour import behaviour_tables
from kvcomp_eval.compare.report.command import write_report
from kvcomp_eval.compare.report.samples import marked
from kvcomp_eval.compare.report.tables import cost_table, fidelity_table, summary_table, task_table
from kvcomp_eval.tracing import TraceFile
from tests.compare import synthetic
from tests.compare.test_leaderboard import CHANGED

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECTIONS = ("answer", "plots", "fidelity", "tasks", "costs", "samples", "provenance")


class Task:
    """Stands for lmms-eval's task: questions and pictures."""

    eval_docs = range(12)

    def doc_to_text(self, doc):
        return f"What is in <picture> {doc}?"

    def doc_to_visual(self, doc):
        return [Image.new("RGB", (400, 300), (20 * doc, 0, 0))]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Folder of a written report with an invalid row and a failed cell, and its results."""
    folder = tmp_path_factory.mktemp("report")
    made = synthetic.write_run(folder, CHANGED)
    with synthetic.Journal(folder) as journal:
        cell = next(cell for cell in made.cells({synthetic.TASK: [synthetic.TASK]}) if cell.row.name == "random @ 10 %")
        synthetic.write_cell(journal, cell, CHANGED["random @ 10 %"], invalid=["leak: document 0 <b>differs</b>"])
        journal.append([{"kind": "failed", "cell": "lookm @ 20 % | made_up | seed 0", "error": "ValueError: no room"}])
    write_report([folder], folder, Console(quiet=True), lambda name: Task())
    return folder, json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The same of a run in which one row has drift and another one classes of heads."""
    folder = tmp_path_factory.mktemp("traced")
    synthetic.write_run(folder, CHANGED)
    records = read_records([folder / "journal.jsonl"])
    with synthetic.Journal(folder) as journal:
        for record in records.values():
            record.journal = journal
        add_drift(records[f"random @ 10 % | {synthetic.TASK} | seed 0"])
        add_heads(records[f"snapkv @ 10 % | {synthetic.TASK} | seed 0"])
    write_report([folder], folder, Console(quiet=True), lambda name: Task())
    return folder, json.loads((folder / "results.json").read_text())


def test_a_run_without_a_finished_cell_has_a_page_that_says_why(tmp_path):
    synthetic.write_run(tmp_path, {})
    with synthetic.Journal(tmp_path) as journal:
        journal.append([{"kind": "failed", "cell": "full | made_up | seed 0", "error": "DataNotFound: nowhere"}])
    write_report([tmp_path], tmp_path, Console(quiet=True), lambda name: Task())
    page = (tmp_path / "report.html").read_text()
    assert "DataNotFound: nowhere" in page
    assert "No valid row can be ranked yet." in page


def add_drift(record):
    """Two answers with two steps of two layers; the second answer drifts twice as much and refreshes half as often."""
    path = record.new_trace()
    file = TraceFile(str(path))
    chosen = torch.tensor([[1, 2], [3, 4]])
    for factor in (1, 2):
        prompt = file.prompt(50)
        for layer in (0, 1):
            prompt.start(layer, chosen)
        for drift in (0.1, 0.2):
            for layer in (0, 1):
                figures = (drift * factor, 0.15, float(layer < 2 / factor))
                prompt(layer, *map(torch.tensor, figures), chosen)
    file.close()
    record.add_trace(path)


def add_heads(record):
    """Two layers of two heads; of 500 tokens 40 to 80 are held, and head 1 of layer 1 is static in half the answers."""
    heads = {"entries": [[40, 60], [80, 60]], "sparsity": [0.5, 0.25, 0.75, 0.875]}
    answers = enumerate(record.answers.values())
    record.add([line | {"heads": heads | {"static": [0, 1, 1, index % 2]}} for index, line in answers])


def test_the_page_refers_to_nothing_outside_of_itself(report):
    text = (report[0] / "report.html").read_text()
    links = re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"')\s>]+)", text)
    assert links
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert "@import" not in text
    assert "<script" not in text


def test_ids_are_unique_and_every_reference_has_its_target(report):
    text = (report[0] / "report.html").read_text()
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', text)) <= set(ids)


def test_what_users_wrote_is_escaped(report):
    text = (report[0] / "report.html").read_text()
    assert "What is in &lt;picture&gt;" in text
    assert "<b>differs" not in text


def test_invalid_rows_and_failed_cells_are_on_the_first_screen(report):
    text = (report[0] / "report.html").read_text()
    first = text[: text.index('id="plots"')]
    assert "random @ 10 %: INVALID, leak: document 0" in first
    assert "lookm @ 20 % | made_up | seed 0: failed, ValueError: no room" in first


def test_marked_words_are_those_that_differ():
    assert marked("a red cat sits", "a blue cat sits") == [("a", False), ("red", True), ("cat sits", False)]
    assert marked("same", "same") == [("same", False)]
    assert marked("", "gone") == []


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip(
            "there is no chromium, chromium-browser or google-chrome on this machine, and no Python package "
            "brings one: install the system's package to have the page looked at"
        )
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "sections"), [("report", SECTIONS), ("traced", (*SECTIONS, "behaviour"))])
def test_the_page_shows_every_section_without_error_or_request(request, browser, width, scheme, name, sections):
    report = request.getfixturevalue(name)
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    problems, requests = [], []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"file://{report[0] / 'report.html'}")
    assert problems == []
    assert [url for url in requests if not url.startswith(("data:", "file:"))] == []
    assert len([url for url in requests if url.startswith("file:")]) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert {section.get_attribute("id") for section in page.locator("section").all()} == set(sections)
    for section in sections:
        assert page.locator(f"#{section}").is_visible()
    assert page.locator("figure svg").count() >= 4
    assert page.locator("article img").count() >= 1
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = sum(map(int, re.findall(r"\d+", background)[:3])) < 3 * 128
    assert dark == (scheme == "dark")
    page.close()


def test_answers_are_shown_in_full_with_the_divergence_marked(report, browser):
    page = browser.new_page()
    page.goto(f"file://{report[0] / 'report.html'}")
    article = page.locator("article").first
    document = int(re.search(r"document (\d+)", article.inner_text()).group(1))
    full, ours = (article.locator("dd").nth(place).inner_text() for place in (2, 3))
    changed = CHANGED["random @ 20 %"][document]
    assert full == synthetic.answer(document)
    assert ours == synthetic.answer(document, changed)
    assert article.locator("mark").inner_text() == " ".join(["nothing"] * changed)
    page.close()


@pytest.mark.parametrize("name", ["report", "traced"])
def test_the_tables_on_the_page_are_those_of_the_results(request, browser, name):
    report = request.getfixturevalue(name)
    page = browser.new_page()
    page.goto(f"file://{report[0] / 'report.html'}")
    board = report[1]["leaderboard"]
    tasks = [task_table(board, task) for task in board["tasks"]]
    expected = [summary_table(board), fidelity_table(board), *tasks, cost_table(board)]
    expected += behaviour_tables(report[1]["behaviour"])
    tables = page.locator("table").all()
    assert len(tables) == len(expected)
    for table, wanted in zip(tables, expected, strict=True):
        rows = table.locator("tbody tr").all()
        shown = [[cell.inner_text() for cell in row.locator("th, td").all()] for row in rows]
        assert [[cell.split("\n")[0] for cell in row] for row in shown] == [line.cells for line in wanted.lines]
    page.close()


def test_what_was_traced_is_summed_up(traced):
    drift, heads = behaviour_tables(traced[1]["behaviour"])
    assert [line.cells for line in drift.lines] == [["random @ 10 %", "2", "0.225", "0.750", "-", "1.000"]]
    assert [line.cells for line in heads.lines] == [
        ["snapkv @ 10 %", "12", "4", "0.62", "0.250 to 0.875", "8.0 %", "16.0 %"]
    ]


def test_every_number_of_what_was_traced_is_in_the_csv_file(traced):
    with (traced[0] / "behaviour.csv").open() as file:
        rows = [(row[0].partition(" ")[0], *row[1:5], float(row[5])) for row in list(csv.reader(file))[1:]]
    assert ("random", "drift", "1", "", "", 0.3) in rows  # of 0.2 and 0.4
    assert ("random", "drift_low", "1", "", "", 0.25) in rows
    assert ("random", "refreshed", "0", "", "", 0.75) in rows  # of both layers, and of one
    assert ("snapkv", "static", "", "1", "1", 0.5) in rows
    assert ("snapkv", "entries", "", "0", "1", 0.12) in rows
    assert len(rows) == 8 * 2 + 3 * 4


def test_nothing_is_said_of_what_was_not_traced(report):
    assert not any(report[1]["behaviour"].values())
    assert 'id="behaviour"' not in (report[0] / "report.html").read_text()
    assert not (report[0] / "behaviour.csv").exists()


def test_the_tables_hold_the_numbers_of_the_results(report):
    board = report[1]["leaderboard"]
    table = summary_table(board)
    found = {(line.cells[0], line.cells[1]): line.cells for line in table.lines}
    row = next(row for row in board["summary"] if row["name"] == "snapkv @ 20 %")
    cells = dict(zip(table.columns, found["snapkv", "20 %"], strict=True))
    fidelity = row["measures"]["fidelity"]
    assert cells["fidelity"] == f"{fidelity['value']:.3f} [{fidelity['low']:.2f}, {fidelity['high']:.2f}]"
    assert cells["same"] == "75 %"
    assert cells["of full"] == "20.0 %"
    assert cells["ms/token"] == "4.2"  # the median of 4.0 and 4.5 of thread time, since there is no GPU
