"""The report as one HTML file that loads nothing."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from kvcomp_eval.compare.report import plots
from kvcomp_eval.compare.report.answer import answers
from kvcomp_eval.compare.report.behaviour import behaviour_tables
from kvcomp_eval.compare.report.behaviour_plots import behaviour_plots
from kvcomp_eval.compare.report.samples import Sample
from kvcomp_eval.compare.report.tables import cost_table, fidelity_table, summary_table, task_table

_FOLDER = files("kvcomp_eval.compare.report")


def page(results: dict[str, Any], samples: list[Sample]) -> str:
    """Render the report.

    Parameters
    ----------
    results : dict
        Content of ``results.json``.
    samples : list of Sample
        The worst answers.
    """
    board = results["leaderboard"]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_FOLDER.joinpath("page.html.j2").read_text(encoding="utf-8"))
    forest = plots.forest_plot(board)
    return template.render(
        title=results["config"]["name"],
        description=results["config"]["description"],
        style=Markup(_FOLDER.joinpath("page.css").read_text(encoding="utf-8")),
        answers=[_unbroken(text) for text in answers(board)],
        summary=summary_table(board),
        pareto=_markup(plots.pareto_plots(board)),
        curves=_markup(plots.budget_curves(board)),
        forest=Markup(forest) if forest else None,
        fidelity=fidelity_table(board),
        tasks=[task_table(board, task) for task in board["tasks"]],
        costs=cost_table(board),
        behaviour=_markup(behaviour_plots(results["behaviour"])),
        behaviour_tables=behaviour_tables(results["behaviour"]),
        samples=samples,
        problems=_problems(results),
        provenance=_provenance(results),
    )


def _unbroken(text: str) -> str:
    """The text with intervals, such as [0.1, 0.2], that no line break divides."""
    return re.sub(r", (?=[-+.\d]+\])", ",\N{NO-BREAK SPACE}", text)


def _markup(svgs: dict[str, str]) -> dict[str, Markup]:
    return {title: Markup(svg) for title, svg in svgs.items()}


def _problems(results: dict[str, Any]) -> list[str]:
    """Violated guards, failed and unfinished cells."""
    invalid = [
        f"{row['name']}: INVALID, {text}" for row in results["leaderboard"]["summary"] for text in row["invalid"]
    ]
    failed = [f"{key}: failed, {error}" for key, error in results["failed"].items()]
    return invalid + failed + [f"{key}: unfinished" for key in results["unfinished"]]


def _provenance(results: dict[str, Any]) -> dict[str, str]:
    """Heading -> text: machine, versions, the configuration, a fingerprint per cell."""
    machine = {key: value for key, value in results["machine"].items() if key != "versions"}
    return {
        "Machine": _yaml(machine),
        "Versions": _yaml(results["machine"]["versions"]),
        "Configuration": _yaml(results["config"]),
        "Fingerprints": "\n".join(f"{value}  {key}" for key, value in results["fingerprints"].items()),
    }


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
