"""The outcome of a metric that could not be computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NotComputed:
    """Stands where a number would; the answers themselves are unharmed.

    Parameters
    ----------
    reason : str
        What is missing and how to get it.
    """

    reason: str

    def __str__(self) -> str:
        return f"not computed: {self.reason}"
