"""One run for the gate: in a folder of its own, so that old answers of other code cannot stand in its way."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kvcomp_eval.compare.config import load_config, with_limit
from kvcomp_eval.compare.logs import quiet_lmms_eval
from kvcomp_eval.compare.results import Run, read_run


def run_fresh(config: str, limit: int | None, folder: Path | None, quiet: bool) -> tuple[Run, list[str]]:
    """Run a configuration and read it back.

    Parameters
    ----------
    config : str
        File or shipped name.
    limit : int, optional
        Documents per task.
    folder : Path, optional
        Kept and resumed; default: temporary.
    quiet : bool

    Returns
    -------
    run : Run
    problems : list of str
        Failed cells and violated guards.
    """
    from kvcomp_eval.compare.runner import Runner

    loaded = with_limit(load_config(config), limit)
    quiet_lmms_eval()
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        with Runner.in_folder(loaded, place) as runner:
            problems = runner.run(quiet)
        return read_run(place), problems
