"""Video files of a benchmark: found by name under any of several folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from loguru import logger

from kvcomp_eval.data.sources import Benchmark

ENDINGS = (".mp4", ".mkv", ".webm", ".avi", ".mov")


class VideoFolder:
    """The videos of a benchmark by name (file name without ending).

    Parameters
    ----------
    benchmark : Benchmark
    names : iterable of str
        All that the documents need. None found is an error; some missing is a warning now and an error when asked for
        (prompts are built before the first answer is generated).
    fallback : str
        Folder under ``HF_HOME`` where lmms-eval unpacks the same videos.
    data_root : str, optional
        Folder instead of the environment variables' values.
    """

    def __init__(self, benchmark: Benchmark, names: Iterable[str], fallback: str, data_root: str | None = None) -> None:
        from huggingface_hub.constants import HF_HOME

        self.benchmark = benchmark
        self.folders = [*benchmark.roots(data_root), Path(HF_HOME) / fallback]
        self._paths = _index(self.folders)
        wanted = dict.fromkeys(names)
        absent = [name for name in wanted if name not in self._paths]
        if len(absent) == len(wanted):
            raise self._missing(f"{benchmark.name} videos (such as {absent[0]})")
        if absent:
            logger.warning(
                f"{benchmark.name}: {len(absent)} of {len(wanted)} videos are missing, such as {', '.join(absent[:5])}"
                "; a run that needs one of them will be refused."
            )

    def path(self, name: str) -> str:
        """Path of one video."""
        if name not in self._paths:
            raise self._missing(f"{self.benchmark.name} video {name}")
        return str(self._paths[name])

    def _missing(self, wanted: str) -> FileNotFoundError:
        remedy = f"the folder that holds the videos ({', '.join(ENDINGS)}; subfolders are searched)"
        return self.benchmark.missing(wanted, self.folders, remedy, "unpack its archives yourself")


def _index(folders: Sequence[Path]) -> dict[str, Path]:
    """Every video under the folders by name; the first folder wins."""
    paths: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() in ENDINGS:
                paths.setdefault(path.stem, path)
    return paths
