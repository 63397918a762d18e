"""The YAML file of a comparison: model, methods, budgets, tasks; read, validated and expanded to cells."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from kvcomp_eval.methods.registry import make_method, method_parameters, suggest
from kvcomp_eval.model_wrappers import FAMILIES

FULL = "full"
CONFIGS = "kvcomp_eval.configs"


class ConfigError(ValueError):
    """A comparison file that cannot be used; the message names the file, the place and the remedy."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Architecture(_Strict):
    """Sizes of a checkpoint that is not on this machine, for the estimates of a dry run."""

    layers: int
    kv_heads: int
    head_dim: int
    bytes_per_value: int = 2
    weight_gib: float | None = None


class ModelEntry(_Strict):
    """The model: family and the arguments that lmms-eval would take as ``--model_args``."""

    family: str
    args: dict[str, Any] = Field(default_factory=dict)
    architecture: Architecture | None = None

    @model_validator(mode="after")
    def _check(self) -> ModelEntry:
        if self.family not in FAMILIES:
            raise ValueError(
                f"{self.family!r} is not a family{suggest(self.family, FAMILIES)}; use {', '.join(FAMILIES)}"
            )
        for name in ("method", "budget_ratio", "budget_entries", "batch_size", "report_path"):
            if name in self.args:
                raise ValueError(f"args.{name} is set by the grid; write it under methods, budgets or batch_size")
        if self.args.get("reference", "off") != "off":
            raise ValueError(
                f"args.reference={self.args['reference']!r} would make uncompressed answers that nothing here reads: a "
                "comparison measures fidelity to its own full row; drop it"
            )
        return self


Budget = Annotated[float, Field(gt=0)]


def _named(value: Any, key: str) -> Any:
    return {key: value} if isinstance(value, str) else value


class MethodEntry(_Strict):
    """A method with hyper-parameters; ``budgets`` replaces those of the grid.

    ``bytes_tolerance`` replaces the guard's; null turns that guard off.
    """

    method: str
    label: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    budgets: list[Budget] | None = None
    bytes_tolerance: float | None = -1.0

    @property
    def name(self) -> str:
        """How the row is called."""
        given = " ".join(f"{key}={value}" for key, value in self.parameters.items())
        return self.label or f"{self.method} {given}".strip()


class TaskEntry(_Strict):
    """A task or group of lmms-eval. ``metric`` decides the ranking; default: the task's first one."""

    task: str
    limit: int | None = Field(default=None, ge=1)
    metric: str | None = None

    @model_validator(mode="after")
    def _check(self) -> TaskEntry:
        plain = self.task.removesuffix("_fidelity")
        if plain != self.task:
            raise ValueError(
                f"{self.task!r} scores nothing but fidelity, which a comparison measures on every task; use {plain!r}"
            )
        return self


class Guards(_Strict):
    """What every cell is checked for.

    Parameters
    ----------
    identity : int
        Samples that are answered again at 100 % budget and must equal the full cache's answers; 0: none.
    leak : bool
        Answer the first sample again at the end; it must be the same.
    positions : bool
        Position ids of the first sample must equal the uncompressed run's.
    bytes_tolerance : float, optional
        Largest relative difference between the prompt entries' device bytes and those that the method declares, which
        for most is the budget; null: not checked.
    """

    identity: int = Field(default=2, ge=0)
    leak: bool = True
    positions: bool = True
    bytes_tolerance: float | None = 0.05


class Estimate(_Strict):
    """Sizes of a typical sample, for dry runs."""

    prompt_tokens: int | None = None
    seconds_per_answer: float | None = None


class PaperTable(_Strict):
    """Published numbers, shown beside ours.

    Parameters
    ----------
    source : str
        The table.
    columns : list of str
        Task and metric, with a space between.
    rows : dict
        Row name, such as ``snapkv @ 10 %`` -> one number per column, or null.
    scale : float
        Turns the published unit into that of the metric; 0.01 for percentages.
    """

    source: str
    columns: list[str]
    rows: dict[str, list[float | None]]
    scale: float = 1.0

    @model_validator(mode="after")
    def _check(self) -> PaperTable:
        for name, values in self.rows.items():
            if len(values) != len(self.columns):
                raise ValueError(f"row {name!r} has {len(values)} numbers for {len(self.columns)} columns")
        return self

    def published(self, row: str, task: str) -> list[dict[str, Any]]:
        """Metric, value and source of what the table says of a row on a task."""
        pairs = zip((column.split() for column in self.columns), self.rows.get(row, []), strict=False)
        return [
            {"source": self.source, "metric": metric, "value": value * self.scale}
            for (place, metric), value in pairs
            if place == task and value is not None
        ]


class Config(_Strict):
    """A comparison.

    Parameters
    ----------
    name : str
        Names the run's folder.
    description : str
        One or two sentences for the report.
    model, methods, tasks
        What is run; method ``full`` is added where it is missing, since every guard and fidelity refers to it.
    budgets : list of float
        Up to 1: fraction of the prompt; above 1: entries per KV head and layer.
    limit : int, optional
        Documents per task, unless the task has its own.
    seeds : list of int
        Seed of random numbers, and of methods that have a ``seed``.
    batch_size : int
    forced : int
        Documents per cell for the teacher-forced measures: each method walks along the uncompressed answer. 0: none.
        Cells that are complete already are not walked again.
    reference : str, optional
        Label of the row that others are tested against; default: the first compressed method.
    trace : bool
        Also keep what the methods did, for the report: drift and refreshes of every step, classes and entries of
        every head. Answers are the same, so a run may go on with or without it; the answers of a cell that was
        interrupted have no drift.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    description: str = ""
    model: ModelEntry
    methods: list[Annotated[MethodEntry, BeforeValidator(lambda value: _named(value, "method"))]] = Field(min_length=1)
    budgets: list[Budget] = Field(default_factory=list)
    tasks: list[Annotated[TaskEntry, BeforeValidator(lambda value: _named(value, "task"))]] = Field(min_length=1)
    limit: int | None = Field(default=None, ge=1)
    seeds: list[int] = Field(default=[0], min_length=1)
    batch_size: int = Field(default=1, ge=1)
    forced: int = Field(default=0, ge=0)
    reference: str | None = None
    guards: Guards = Guards()
    estimate: Estimate = Estimate()
    paper: list[PaperTable] = Field(default_factory=list)
    trace: bool = False

    @model_validator(mode="after")
    def _check(self) -> Config:
        rows = [row for entry in self.methods for row in self.rows_of(entry)]
        _unique("methods", [f"{row.label} at {budget_text(row.budget)}" for row in rows])
        _unique("tasks", [entry.task for entry in self.tasks])
        _unique("seeds", [str(seed) for seed in self.seeds])
        for row in rows:
            row.make(self.seeds[0])
        names = {row.name for row in self.rows()}
        for table in self.paper:
            if unknown := table.rows.keys() - names:
                raise ValueError(
                    f"paper: no row is called {', '.join(sorted(unknown))}; rows are {', '.join(sorted(names))}"
                )
        labels = [row.label for row in rows]
        if self.reference is not None and self.reference not in labels:
            raise ValueError(f"reference: no method is called {self.reference!r}; use one of {', '.join(labels)}")
        return self

    def rows_of(self, entry: MethodEntry) -> list[Row]:
        """The rows of one method: one per budget."""
        if entry.method == FULL:
            return [Row(FULL, FULL, {}, None)]
        budgets = self.budgets if entry.budgets is None else entry.budgets
        if not budgets:
            raise ValueError(f"method {entry.name} has no budget; give budgets: [0.1] at the top or at the method")
        tolerance = self.guards.bytes_tolerance if entry.bytes_tolerance == -1.0 else entry.bytes_tolerance
        return [Row(entry.name, entry.method, entry.parameters, budget, tolerance) for budget in budgets]

    def rows(self) -> list[Row]:
        """All rows of the leaderboard, the full cache first."""
        compressed = [row for entry in self.methods if entry.method != FULL for row in self.rows_of(entry)]
        return [Row(FULL, FULL, {}, None), *compressed]

    @property
    def reference_label(self) -> str:
        compressed = [row.label for row in self.rows() if row.label != FULL]
        return self.reference or (compressed[0] if compressed else FULL)

    def cells(self, leaves: Mapping[str, Sequence[str]]) -> list[Cell]:
        """Every row on every task and seed, task by task, so that prepared inputs are used at once.

        Parameters
        ----------
        leaves : mapping
            Task or group of this file -> names of single tasks.
        """
        return [
            Cell(row, leaf, entry.limit or self.limit, seed, entry.metric)
            for entry in self.tasks
            for leaf in leaves[entry.task]
            for seed in self.seeds
            for row in self.rows()
        ]


@dataclass(frozen=True)
class Row:
    """One line of a leaderboard: a method with hyper-parameters at a budget."""

    label: str
    method: str
    parameters: dict[str, Any]
    budget: float | None
    bytes_tolerance: float | None = None

    @property
    def name(self) -> str:
        return self.label if self.budget is None else f"{self.label} @ {budget_text(self.budget)}"

    def settings(self, seed: int) -> dict[str, Any]:
        """Hyper-parameters, budget included."""
        settings = dict(self.parameters)
        if self.budget is not None:
            settings |= {"budget_ratio": self.budget} if self.budget <= 1 else {"budget_entries": int(self.budget)}
        if "seed" in method_parameters(self.method):
            settings = {"seed": seed, **settings}
        return settings

    def make(self, seed: int) -> Any:
        """Build the method."""
        return make_method(self.method, **self.settings(seed))


@dataclass(frozen=True)
class Cell:
    """One row on one task under one seed: what lmms-eval evaluates in one call."""

    row: Row
    task: str
    limit: int | None
    seed: int
    metric: str | None = None

    @property
    def key(self) -> str:
        return f"{self.row.name} | {self.task} | seed {self.seed}"


def budget_text(budget: float | None) -> str:
    """``10 %`` or ``64 entries``."""
    if budget is None:
        return "100 %"
    return f"{100 * budget:g} %" if budget <= 1 else f"{budget:g} entries"


def load_config(source: str | Path) -> Config:
    """Read a comparison from a YAML file, or a shipped one by name (``demo``)."""
    path = find_config(source)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping with name, model, methods and tasks.")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}: " + "; ".join(_problem(item) for item in error.errors()) + ".") from None


def with_limit(config: Config, limit: int | None) -> Config:
    """The same comparison with another number of documents on every task."""
    if limit is None:
        return config
    if limit < 1:
        raise ConfigError(f"--limit {limit} must be at least 1.")
    tasks = [entry.model_copy(update={"limit": limit}) for entry in config.tasks]
    return config.model_copy(update={"limit": limit, "tasks": tasks})


def find_config(source: str | Path) -> Path:
    """Path of a file, or of a shipped configuration named without its ending."""
    path = Path(source)
    if path.is_file():
        return path
    shipped = shipped_configs()
    if str(source) in shipped:
        return shipped[str(source)]
    raise ConfigError(
        f"{str(source)!r} is neither a file nor a shipped configuration{suggest(str(source), shipped)}; "
        f"shipped are: {', '.join(sorted(shipped))}."
    )


def shipped_configs() -> dict[str, Path]:
    """Name -> path of the configurations of this package."""
    spec = importlib.util.find_spec(CONFIGS)
    folder = Path(next(iter(spec.submodule_search_locations or ()))) if spec else Path()
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _unique(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what}: {', '.join(twice)} occurs more than once; give a label or drop one")


def _problem(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"] if not str(part).startswith("function-"))
    if error["type"] == "extra_forbidden":
        return f"{place} is not a known setting; check its spelling"
    message = error["msg"].removeprefix("Value error, ").rstrip(".")
    given = error.get("input")
    shown = f" (got {given!r})" if isinstance(given, (str, int, float)) else ""
    return f"{place}: {message}{shown}" if place else message
