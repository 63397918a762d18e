"""``kvcomp-eval methods``: what there is, and with which defaults."""

from __future__ import annotations

import argparse
import dataclasses
import inspect

from rich.console import Console
from rich.table import Table

from kvcomp_eval.methods.registry import METHODS, method_class, method_names, method_parameters

_PARAMETERS = "Parameters\n----------\n"
_COMMON = ("budget_ratio", "budget_entries")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``methods``."""
    parser.add_argument("name", nargs="?", choices=method_names(), help="explain one method and its parameters")


def run(options: argparse.Namespace) -> int:
    """Print the table, or one method's documentation."""
    console = Console()
    if options.name is not None:
        console.print(f"[bold]{options.name}[/bold]")
        console.print(explain(method_class(options.name)), markup=False)
        return 0
    table = Table(show_lines=True)
    for column in ("method", "paper", "budget varies by", "merges", "while decoding", "parameters and defaults"):
        table.add_column(column, overflow="fold")
    for name in METHODS:
        cls = method_class(name)
        table.add_row(
            name if cls.kind == "method" else f"{name} (reference)",
            cls.paper,
            cls.varies,
            "yes" if cls.merges else "-",
            cls.decoding,
            ", ".join(f"{key}={value}" for key, value in method_parameters(name).items() if key not in _COMMON),
        )
    console.print(table)
    console.print(f"Every method takes {' or '.join(_COMMON)}; `kvcomp-eval methods NAME` explains one.", markup=False)
    return 0


def explain(method: type) -> str:
    """A method's documentation, with the parameters that it shares with others at its end."""
    own, *shared = (inspect.getdoc(cls) or "" for cls in method.__mro__ if dataclasses.is_dataclass(cls))
    if _PARAMETERS not in own:
        own += f"\n\n{_PARAMETERS}".rstrip()
    return "\n".join([own, *(text.partition(_PARAMETERS)[2] for text in shared if _PARAMETERS in text)])
