"""The gate's verdicts for people and for CI: terminal, Markdown, JUnit XML."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

from rich.console import Console
from rich.markup import escape

from kvcomp_eval.compare.gate import NOT_SHOWN, NOT_WORSE, WORSE, Verdict


def print_verdicts(verdicts: list[Verdict], margin: float, console: Console) -> None:
    """One line per failure, and the sums."""
    for verdict in verdicts:
        if verdict.is_failure:
            place = f"{verdict.row}, {verdict.task}"
            console.print(f"[red]{verdict.state}[/red] {escape(place)}: {escape(verdict.sentence())}", highlight=False)
    console.print(headline(verdicts, margin), highlight=False)
    console.print(power_note(verdicts), highlight=False)


def headline(verdicts: list[Verdict], margin: float) -> str:
    """The result in one sentence."""
    failures = [verdict for verdict in verdicts if verdict.is_failure]
    if not failures:
        return f"All {len(verdicts)} comparisons are not worse than the baseline by more than {margin:g}."
    counts = {state: sum(verdict.state == state for verdict in failures) for state in (WORSE, NOT_SHOWN, "invalid")}
    parts = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{len(failures)} of {len(verdicts)} comparisons failed ({parts}; margin {margin:g})."


def power_note(verdicts: list[Verdict]) -> str:
    """What losses these documents can show."""
    effects = [
        verdict.detectable for verdict in verdicts if math.isfinite(verdict.detectable) and verdict.detectable > 0
    ]
    documents = min(verdict.documents for verdict in verdicts)
    if not effects:
        return f"No answer's value changed ({documents} documents or more in each comparison)."
    return (
        f"With {documents} documents or more, and the spread seen here, true losses of {min(effects):.3f} to "
        f"{max(effects):.3f} would be found with 80 % power; smaller ones need more documents."
    )


def markdown(verdicts: list[Verdict], margin: float, name: str) -> str:
    """A short summary, for a job's page."""
    lines = [f"### kvcomp-eval check: {name}", "", headline(verdicts, margin), "", power_note(verdicts), ""]
    lines += ["| | method | task | measure | difference | changed |", "|---|---|---|---|---|---|"]
    for verdict in sorted(verdicts, key=lambda verdict: not verdict.is_failure):
        interval = f"{verdict.difference:+.4f} [{verdict.low:+.4f}, {verdict.high:+.4f}]"
        state = f"**{verdict.state}**" if verdict.is_failure else verdict.state
        changed = f"{verdict.changed} of {verdict.documents}"
        lines.append(f"| {state} | {verdict.row} | {verdict.task} | {verdict.measure} | {interval} | {changed} |")
    return "\n".join(lines) + "\n"


def junit(verdicts: list[Verdict], name: str, error: str | None = None) -> str:
    """One test case per comparison; an error stands for a run that could not be compared."""
    failures = sum(verdict.is_failure for verdict in verdicts)
    counts = {"tests": len(verdicts) + (error is not None), "failures": failures, "errors": int(error is not None)}
    suite = ElementTree.Element("testsuite", {"name": f"kvcomp-eval {name}"} | {k: str(v) for k, v in counts.items()})
    for verdict in verdicts:
        place = {"classname": f"{name}.{verdict.task}", "name": f"{verdict.row}: {verdict.measure}"}
        case = ElementTree.SubElement(suite, "testcase", place)
        if verdict.state != NOT_WORSE:
            ElementTree.SubElement(case, "failure", {"type": verdict.state, "message": verdict.sentence()})
        else:
            ElementTree.SubElement(case, "system-out").text = verdict.sentence()
    if error is not None:
        case = ElementTree.SubElement(suite, "testcase", {"classname": name, "name": "run"})
        ElementTree.SubElement(case, "error", {"message": error})
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
