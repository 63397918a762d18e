"""The tables of a report as text, once for terminal, Markdown and page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvcomp_eval.compare.config import budget_text
from kvcomp_eval.compare.fidelity import (
    AGREED,
    COCO,
    DIVERGENT,
    FIDELITY,
    FREE_RUNNING,
    KL,
    LENGTH,
    NLL,
    SAME,
    TEACHER_FORCED,
    TOP1,
)
from kvcomp_eval.compare.leaderboard import SCORE

EMPTY = "-"


@dataclass(frozen=True)
class Line:
    """One line of a table; ``kind`` is full, ranked, unranked or invalid, ``note`` why, or what it holds by design."""

    cells: list[str]
    kind: str
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its title and what its columns mean."""

    title: str
    columns: list[str]
    lines: list[Line]
    legend: str = ""


def summary_table(board: dict[str, Any]) -> Table:
    """Which method at which bytes costs how much, over all tasks."""
    columns = [
        "method",
        "budget",
        "prompt cache",
        "of full",
        "rank",
        "fidelity",
        "group",
        "same",
        "score",
        "score vs full",
        "ms/token",
    ]
    lines = []
    for row in in_order(board["summary"]):
        measures, costs = row["measures"], row["costs"]
        lines.append(
            _line(
                row,
                [
                    row["label"],
                    budget_text(row["budget"]),
                    size(costs["device_bytes"]),
                    f"{100 * costs['ratio']:.1f} %",
                    rank(row),
                    interval(measures.get(FIDELITY)),
                    measures.get(FIDELITY, {}).get("group", EMPTY),
                    share(measures.get(SAME)),
                    interval(measures.get(SCORE)),
                    difference(measures.get(SCORE, {}).get("vs_full")),
                    number(costs["decode"], 1),
                ],
            )
        )
    legend = (
        "Prompt cache: device bytes held per answer, measured. Fidelity: ROUGE-L F1 to the answer with the full cache; "
        "same: share of equal answers. Score: main metric of each task over all documents. "
        "ms/token: median, on a CPU of thread time. Brackets: 95 % paired bootstrap intervals. Ranks and "
        f"groups compare rows that hold equal bytes (within 2 % of {board['reference']}); rows of one letter do not "
        "differ significantly (Holm)."
    )
    legend += _resampling(row["measures"].get(FIDELITY) for row in board["summary"])
    return Table("All tasks", columns, lines, legend)


def short_summary(board: dict[str, Any]) -> Table:
    """The summary's most needed columns, for a terminal of 80 characters."""
    table = summary_table(board)
    names = ("method", "budget", "rank", "fidelity", "group", "score vs full")
    kept = [table.columns.index(name) for name in names]
    lines = [Line([line.cells[index] for index in kept], line.kind, line.note) for line in table.lines]
    return Table(table.title, list(names), lines, table.legend)


def fidelity_table(board: dict[str, Any]) -> Table:
    """Every measure of how close the answers are to those of the full cache, over all tasks."""
    rows = in_order(board["summary"])
    columns = ["method", "budget", "ROUGE-L", "COCO", "same", "agreed", "diverges at", "length"]
    is_forced = any(KL in row["measures"] for row in rows)
    lines = []
    for row in rows:
        measures = row["measures"]
        cells = [
            row["label"],
            budget_text(row["budget"]),
            interval(measures.get(FIDELITY)),
            interval(measures.get(COCO)),
            *(share(measures.get(name)) for name in (SAME, AGREED)),
            mean(measures.get(DIVERGENT), 1),
            mean(measures.get(LENGTH), 2),
        ]
        forced = [interval(measures.get(name)) for name in (KL, TOP1, NLL)]
        lines.append(_line(row, cells + (forced if is_forced else [])))
    legend = (
        "Answers against those of the full cache. ROUGE-L: F1 of rouge-score; COCO: the variant of the COCO caption "
        "tools. Same: equal texts. Agreed: tokens from the start that are equal, of the longer answer. Diverges at: "
        "tokens before the first other one, over answers that differ. Length: tokens over the full cache's."
    )
    if is_forced:
        count = max(row["measures"].get(KL, {}).get("documents", 0) for row in rows)
        legend += (
            f" KL (full to compressed, nats), top-1 agreement and NLL difference (nats per token): along the full "
            f"cache's answers to {count} documents, means over tokens, then over documents; the row of the full cache "
            "was run twice for them."
        )
        columns += ["forced KL", "top-1", "NLL diff."]
    return Table("Fidelity", columns, lines, legend)


def task_table(board: dict[str, Any], task: str) -> Table:
    """All metrics of one task."""
    rows = board["tasks"][task]
    main = board["main_metrics"][task]
    elsewhere = {*FREE_RUNNING, *TEACHER_FORCED} - {FIDELITY}
    names = list(dict.fromkeys(name for row in rows for name in row["measures"] if name not in elsewhere))
    names.sort(key=lambda name: (name != main, name == FIDELITY))
    papers = any(row["paper"] for row in rows)
    columns = ["method", "budget", "of full", "rank", "group", f"vs {board['reference']}", *names]
    lines = []
    for row in in_order(rows):
        measure = row["measures"].get(main, {})
        cells = [
            row["label"],
            budget_text(row["budget"]),
            f"{100 * row['costs']['ratio']:.1f} %",
            rank(row),
            measure.get("group", EMPTY),
            difference(measure.get("vs_reference"), with_p=True),
            *(interval(row["measures"].get(name)) for name in names),
        ]
        lines.append(_line(row, cells + ([_paper(row)] if papers else [])))
    legend = (
        f"Ranked by {main}, {max(row['documents'] for row in rows)} answers per row. "
        f"p: two-sided, Holm-corrected over the rows beside {board['reference']}."
    )
    legend += _resampling(row["measures"].get(main) for row in rows)
    reasons = {name: why for row in rows for name, why in row["not_computed"].items()}
    legend += "".join(f" {name}: {why}." for name, why in reasons.items())
    return Table(task, columns + (["paper"] if papers else []), lines, legend)


def cost_table(board: dict[str, Any]) -> Table:
    """Bytes, times and memory of every row."""
    columns = [
        "method",
        "budget",
        "device",
        "index",
        "host",
        "reads/step",
        "prefill s",
        "(CPU)",
        "ms/token p50",
        "p90",
        "(CPU p50)",
        "peak prefill",
        "peak decode",
    ]
    lines = []
    for row in in_order(board["summary"]):
        costs = row["costs"]
        cells = [
            row["label"],
            budget_text(row["budget"]),
            *(size(costs[name]) for name in ("device_bytes", "index_bytes", "host_bytes")),
            number(costs["reads_per_step"], 0),
            number(costs["prefill"], 3),
            number(costs["prefill_cpu"], 3),
            *(number(costs[name], 2) for name in ("decode_p50", "decode_p90", "decode_cpu_p50")),
            size(costs["prefill_peak"]),
            size(costs["decode_peak"]),
        ]
        lines.append(_line(row, cells))
    legend = (
        "Bytes are means per answer; prefill is the median, vision tower included; ms/token over all decode steps, "
        "wall clock beside CPU time of the thread. Peaks: allocated on a GPU, resident set of the whole process on "
        "a CPU."
    )
    return Table("Costs", columns, lines, legend)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Full cache first, then by budget from large to small; inside one by rank, rows without a rank last."""

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        budget = float("inf") if row["budget"] is None else row["budget"]
        return -budget, bool(row["invalid"]), row["rank"] is None, row["rank"] or 0, row["label"]

    return sorted(rows, key=key)


def kind_of(row: dict[str, Any]) -> str:
    """How a row is shown."""
    if row["invalid"]:
        return "invalid"
    if row["budget"] is None:
        return "full"
    return "unranked" if row["rank"] is None else "ranked"


def rank(row: dict[str, Any]) -> str:
    """The rank, or why there is none."""
    return {"invalid": "INVALID", "full": EMPTY, "unranked": "other bytes"}.get(kind_of(row), str(row["rank"]))


def interval(measure: dict[str, Any] | None) -> str:
    """``0.93 [0.88, 0.97]``."""
    if measure is None:
        return EMPTY
    if measure["low"] is None:
        return number(measure["value"], 3)
    return f"{number(measure['value'], 3)} [{number(measure['low'], 2)}, {number(measure['high'], 2)}]"


def difference(estimate: dict[str, Any] | None, with_p: bool = False) -> str:
    """``-0.05 [-0.11, +0.01]``."""
    if estimate is None:
        return EMPTY
    text = f"{estimate['value']:+.3f}"
    if estimate["low"] is not None:
        text += f" [{estimate['low']:+.2f}, {estimate['high']:+.2f}]"
    return f"{text}, p {estimate['p_holm']:.3f}" if with_p else text


def share(measure: dict[str, Any] | None) -> str:
    """``75 %``."""
    return EMPTY if measure is None else f"{100 * measure['value']:.0f} %"


def mean(measure: dict[str, Any] | None, digits: int) -> str:
    """The value without its interval."""
    return number(measure["value"] if measure else None, digits)


def number(value: float | None, digits: int) -> str:
    """Fixed digits; a dash for what is not known."""
    return EMPTY if value is None else f"{value:.{digits}f}"


def size(value: float | None) -> str:
    """Bytes in KiB, MiB or GiB."""
    if value is None:
        return EMPTY
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value / 1024:.1f} KiB"


def _resampling(measures: Iterable[dict[str, Any] | None]) -> str:
    """What was resampled, where documents share images or videos."""
    sizes = {(found["clusters"], found["documents"]) for found in measures if found and found["clusters"]}
    shared = sorted(pair for pair in sizes if pair[0] < pair[1])
    return "".join(
        f" {documents} documents share images or videos: the {clusters} groups of them were resampled, not documents."
        for clusters, documents in shared
    )


def _line(row: dict[str, Any], cells: list[str]) -> Line:
    return Line(cells, kind_of(row), "; ".join([*row["invalid"], *row["departures"]]))


def _paper(row: dict[str, Any]) -> str:
    """Published figure, ours minus it, and whether our interval holds it."""
    texts = []
    for figure in row["paper"]:
        measure = row["measures"].get(figure["metric"])
        text = f"{figure['value']:g} ({figure['source']})"
        if measure is not None:
            text += f", ours {measure['value'] - figure['value']:+.3g}"
            if measure["low"] is not None:
                inside = measure["low"] <= figure["value"] <= measure["high"]
                text += ", inside our interval" if inside else ", outside our interval"
        texts.append(text)
    return "; ".join(texts) or EMPTY
