"""One folder out of a tar archive, all of it or none of it."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

from kvcomp_eval.data.sources import DataDamaged

ENDINGS = (".tar", ".tar.gz", ".tgz")


def is_archive(path: Path) -> bool:
    """True for a tar file, by its name."""
    return path.is_file() and path.name.endswith(ENDINGS)


def extract_folder(archive: Path, folder: str, target: Path) -> Path:
    """Extract what lies under a folder of an archive; nothing is done if that was done before.

    The members go to a temporary folder beside `target`, which takes their place at the end, under a lock: a killed
    process leaves nothing half done, and of several processes one extracts and the others wait.

    Parameters
    ----------
    archive : Path
    folder : str
        A folder at the top of the archive, or one level below it.
    target : Path
        Where the content of that folder will be.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if target.is_dir():
            return target
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            found, seen = _extract(archive, folder, partial)
            if not found:
                raise DataDamaged(
                    f"{archive} holds no folder {folder!r}; it holds {', '.join(sorted(seen)) or 'none'}."
                )
            os.replace(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def _extract(archive: Path, folder: str, partial: Path) -> tuple[bool, set[str]]:
    """Extract the members under `folder`; returns whether there were any, and the folders that were seen."""
    found = False
    seen: set[str] = set()
    try:
        with (
            archive.open("rb") as file,
            tqdm(total=archive.stat().st_size, unit="B", unit_scale=True, desc=f"{archive.name}: {folder}") as bar,
            tarfile.open(fileobj=file) as tar,
        ):
            for member in tar:
                parts = [part for part in Path(member.name).parts if part != "."]
                seen.update(parts[:1] if len(parts) > 1 else ())
                inside = parts[parts.index(folder) + 1 :] if folder in parts[:2] else []
                if inside:
                    tar.extract(member.replace(name="/".join(inside), deep=False), partial, filter="data")
                    found = True
                bar.update(file.tell() - bar.n)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataDamaged(
            f"{archive} is truncated or damaged ({type(error).__name__}: {error}); download it again."
        ) from error
    return found, seen
