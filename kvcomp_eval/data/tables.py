"""Annotations as rows: from files in the user's folder, or from the hub; parquet, JSON, JSON lines, CSV."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset, Image, concatenate_datasets, load_dataset
from loguru import logger

from kvcomp_eval.data.sources import (
    Benchmark,
    DataDamaged,
    full_revision,
    hub_files,
    hub_problem,
    offline_reason,
    snapshots,
)

#: Shards as data sets on the hub are named: val-00000-of-00003.parquet.
SHARDS = re.compile(r"-\d+-of-(\d+)\b")


def load_rows(
    benchmark: Benchmark,
    patterns: Sequence[str],
    columns: Sequence[str],
    *,
    configuration: str | None = None,
    split: str = "test",
    data_root: str | None = None,
    revision: str | None = None,
) -> Dataset:
    """Rows of a benchmark's annotation, images not decoded.

    Parameters
    ----------
    benchmark : Benchmark
    patterns : sequence of str
        File names with wildcards, best first, in a root folder or on the hub; all files of the first pattern that
        matches are read.
    columns : sequence of str
        Columns that must be there.
    configuration, split : str
        Which table of the hub's data set, should no file there match.
    data_root : str, optional
        Folder or file; default: the environment variables' values.
    revision : str, optional
        Commit on the hub instead of the benchmark's own.
    """
    roots, offline, revision = benchmark.roots(data_root), offline_reason(), revision or benchmark.revision
    cached = snapshots(benchmark.repository, revision) if offline else []
    for root in [*roots, *cached]:
        files = _matching(root, patterns)
        if files:
            return _checked(read_files(files), columns, ", ".join(map(str, files)))
    cause = None
    if not offline:
        try:
            rows = _from_hub(benchmark, patterns, configuration, split, revision)
            return _checked(rows, columns, benchmark.repository)
        except DataDamaged:
            raise
        except Exception as error:  # whatever the hub's client raises, the user needs to know the other way too
            offline, cause = hub_problem(error), error
    tried = [root / pattern for root in roots for pattern in patterns]
    remedy = f"the folder that holds {' or '.join(patterns)}"
    raise benchmark.missing(f"{benchmark.name} annotations", tried, remedy, offline) from cause


def read_files(files: Sequence[Path]) -> Dataset:
    """Read one table from its files, in the order of their names; they say themselves how many there should be."""
    tables = []
    for file in sorted(files):
        shards = SHARDS.search(file.name)
        if shards and len(files) != int(shards[1]):
            raise DataDamaged(f"{file} is one of {int(shards[1])} files, and {len(files)} are there; fetch the others.")
        try:
            tables.append(_READERS[file.suffix](file))
        except KeyError:
            raise DataDamaged(f"{file} has an unknown ending; tables are {', '.join(_READERS)}.") from None
        except (ValueError, OSError) as error:
            raise DataDamaged(f"{file} cannot be read ({error}); fetch it again.") from error
    return concatenate_datasets(tables)


def _matching(root: Path, patterns: Sequence[str]) -> list[Path]:
    """Files of the first pattern that matches; a root that is a file is itself the table."""
    if root.is_file():
        return [root]
    found = ([file for file in root.rglob(pattern) if file.is_file()] for pattern in patterns)
    return next(filter(None, found), [])


def _from_hub(
    benchmark: Benchmark, patterns: Sequence[str], configuration: str | None, split: str, revision: str | None
) -> Dataset:
    """Rows of the files that match, and no others; without any, of whatever ``datasets`` finds in the repository."""
    commit = full_revision(benchmark.repository, revision)
    logger.info(f"{benchmark.name}: {benchmark.repository} at {commit}")
    files = hub_files(benchmark.repository, commit, patterns)
    if files:
        return read_files(files)
    return _undecoded(load_dataset(benchmark.repository, configuration, split=split, revision=commit))


def _undecoded(rows: Dataset) -> Dataset:
    """Keep images as bytes: they are opened one by one, when a model asks, with our own errors."""
    for name, feature in rows.features.items():
        if isinstance(feature, Image):
            rows = rows.cast_column(name, Image(decode=False))
    return rows


def _checked(rows: Dataset, columns: Sequence[str], source: str) -> Dataset:
    absent = [column for column in columns if column not in rows.column_names]
    if absent:
        raise DataDamaged(f"{source} has no column {', '.join(absent)}; it has {', '.join(rows.column_names)}.")
    if not len(rows):
        raise DataDamaged(f"{source} has no rows.")
    return rows


def _read_parquet(file: Path) -> Dataset:
    return _undecoded(Dataset.from_parquet(str(file)))


def _read_json(file: Path) -> Dataset:
    """A list of objects; ``{"data": [...]}`` around it is allowed."""
    content = json.loads(file.read_text(encoding="utf-8"))
    return Dataset.from_list(content["data"] if isinstance(content, dict) else content)


def _read_json_lines(file: Path) -> Dataset:
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return Dataset.from_list(rows)


def _read_csv(file: Path) -> Dataset:
    with file.open(encoding="utf-8", newline="") as lines:
        return Dataset.from_list(list(csv.DictReader(lines)))


_READERS = {".parquet": _read_parquet, ".json": _read_json, ".jsonl": _read_json_lines, ".csv": _read_csv}
