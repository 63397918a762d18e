"""Append-only files of JSON lines."""

from __future__ import annotations

import os
from pathlib import Path


def recovered_lines(path: Path) -> list[str]:
    """Complete lines of a file, none if it does not exist; what a kill left of the last one is cut off the file."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    # Not splitlines(): an answer may hold other characters that end lines.
    return whole.decode("utf-8").split("\n")[:-1]
