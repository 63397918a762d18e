"""Keep lmms-eval's log off the terminal."""

from __future__ import annotations

import sys


def quiet_lmms_eval() -> None:
    """Show errors of lmms-eval only; it logs every step."""
    from loguru import logger

    logger.remove()
    logger.add(sys.stderr, level="ERROR")
