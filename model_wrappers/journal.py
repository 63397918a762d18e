"""What a run held and took: one line per answer in a side file, means in lmms-eval's results."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from kvcomp_eval.report import SUMMED_FIGURES, CacheReport

#: Figures of a report that are sums over the samples of its batch; their mean per answer goes into the results.
PER_ANSWER = (*SUMMED_FIGURES, "prefill_seconds", "decode_seconds")


class Journal:
    """Append-only JSON lines, one per answer.

    Parameters
    ----------
    path : str or None
        None writes nothing. Processes of rank r > 0 write beside it, to ``<stem>.rank<r><suffix>``.
    rank : int
    """

    def __init__(self, path: str | None, rank: int = 0) -> None:
        self.path: Path | None = None
        if path is None:
            return
        self.path = Path(path) if rank == 0 else Path(path).with_suffix(f".rank{rank}{Path(path).suffix}")
        if self.path.is_dir():
            raise ValueError(f"report_path={path!r} is a folder; name a file, such as report.jsonl.")
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, line: dict[str, Any]) -> None:
        """Append one line and flush it."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


class RunStatistics:
    """Sums over the calls of a run, and their means per answer."""

    def __init__(self) -> None:
        self.answers = 0
        self.tokens = 0
        self.seconds = 0.0
        self._sums: dict[str, float] = defaultdict(float)

    def add(self, report: CacheReport, answers: int, tokens: int, seconds: float) -> None:
        """Count one ``generate`` call."""
        self.answers += answers
        self.tokens += tokens
        self.seconds += seconds
        for name in PER_ANSWER:
            self._sums[name] += getattr(report, name)
        self._sums["prompt_tokens"] += sum(report.prompt_tokens)
        self._sums["steps"] += report.generated_tokens

    def means(self) -> dict[str, float]:
        """Means per answer, the realised ratio (device bytes over those of a full cache), seconds per decode step."""
        if not self.answers:
            return {}
        names = (*PER_ANSWER, "prompt_tokens")
        return {
            **{name: self._sums[name] / self.answers for name in names},
            "realised_ratio": self._sums["device_bytes"] / self._sums["full_bytes"],
            "decode_seconds_per_token": self._sums["decode_seconds"] / max(1.0, self._sums["steps"]),
        }
