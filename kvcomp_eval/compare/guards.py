"""Checks that every cell must pass before its row may be ranked."""

from __future__ import annotations

from typing import Any

from kvcomp_eval.compare.config import Guards, Row
from kvcomp_eval.compare.record import REPEAT, WHOLE, CellRecord


def violations(record: CellRecord, row: Row, full: CellRecord | None, guards: Guards) -> list[str]:
    """Sentences about what is wrong with a cell; none if all is well.

    Parameters
    ----------
    record, row
        The cell.
    full : CellRecord, optional
        The uncompressed cell of the same task and seed; None while checking that cell itself.
    guards : Guards
    """
    found = [*_bytes(record, row), *_leak(record, guards)]
    if full is not None and full.scores is None:
        return [*found, "full: the uncompressed cell failed, so answers and positions cannot be compared with it"]
    if full is not None:
        found += [*_identity(record, full, guards), *_positions(record, full, guards)]
    return found


def _bytes(record: CellRecord, row: Row) -> list[str]:
    if row.budget is None or row.bytes_tolerance is None:
        return []
    # An index or a pool is extra, and shown.
    realised = _held(record, "device_bytes") - _held(record, "index_bytes") - _held(record, "pool_bytes")
    declared = _sum(record, "declared_bytes")
    if abs(realised - declared) <= row.bytes_tolerance * declared:
        return []
    return [
        f"bytes: {realised / declared:.3f} of the planned prompt bytes were held "
        f"(tolerance {100 * row.bytes_tolerance:g} %)"
    ]


def departures(record: CellRecord, row: Row) -> list[str]:
    """What a valid row has to say of its budget: by its design, the method holds more or less."""
    if row.budget is None or row.bytes_tolerance is None:
        return []
    planned = _sum(record, "planned_bytes")
    share = (_sum(record, "declared_bytes") + _held(record, "pool_bytes")) / planned
    if abs(share - 1) <= row.bytes_tolerance:
        return []
    return [f"by design holds {share:.2f} of its budget, index not counted"]


def _held(record: CellRecord, figure: str) -> float:
    return sum(line["report"][figure] for line in record.answers.values())


def _sum(record: CellRecord, name: str) -> float:
    return sum(line[name] for line in record.answers.values())


def _leak(record: CellRecord, guards: Guards) -> list[str]:
    repeated = record.asked(REPEAT)
    if not guards.leak:
        return []
    if not repeated:
        return ["leak: the first sample was not repeated"]
    return [
        f"leak: document {key[1]} was answered otherwise when it was repeated last"
        for key, line in repeated.items()
        if line["tokens"] != record.alone(key)["tokens"]
    ]


def _identity(record: CellRecord, full: CellRecord, guards: Guards) -> list[str]:
    whole = record.asked(WHOLE)
    if guards.identity and not whole:
        return ["identity: no sample was answered at 100 %"]
    return [
        f"identity: at 100 % document {key[1]} is not answered as with the full cache"
        for key, line in whole.items()
        if line["tokens"] != full.alone(key)["tokens"]
    ]


def _positions(record: CellRecord, full: CellRecord, guards: Guards) -> list[str]:
    if not guards.positions:
        return []
    ours, theirs = record.asked(REPEAT), full.asked(REPEAT)
    if not ours or ours.keys() != theirs.keys():
        return ["positions: the first sample was not repeated in this and the uncompressed run"]
    return [
        f"positions: on document {key[1]} the decoder was given other position ids than in the uncompressed run"
        for key, line in ours.items()
        if not _same_positions(line["positions"], theirs[key]["positions"])
    ]


def _same_positions(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Equal prompts, and equal steps as far as both answers go."""
    if not ours or not theirs:
        return ours == theirs
    steps = min(len(ours["steps"]), len(theirs["steps"]))
    return ours["prompt"] == theirs["prompt"] and ours["steps"][:steps] == theirs["steps"][:steps]
