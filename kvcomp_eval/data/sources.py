"""Where benchmark data may lie: a folder given in the task, folders named by variables, or the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

REPO_TYPE = "dataset"


class DataNotFound(FileNotFoundError):
    """A benchmark's data is in none of the places where it may be."""


class DataDamaged(ValueError):
    """A benchmark's data is there and cannot be used."""


@dataclass(frozen=True)
class Benchmark:
    """What is said about a benchmark when its data is missing.

    Parameters
    ----------
    name : str
        Name in messages.
    variables : tuple of str
        Environment variables that may name its folder; the first is the one that is recommended.
    repository : str
        Data set on the hub.
    revision : str or None
        Commit that is read, abbreviated or full; None is the newest one.
    size : str
        Size of the download, in words.
    """

    name: str
    variables: tuple[str, ...]
    repository: str
    revision: str | None
    size: str

    def roots(self, data_root: str | None = None) -> list[Path]:
        """Folders (or archives) to look in: the one given in the task, else those of the variables."""
        given = [data_root] if data_root else [os.environ.get(variable) for variable in self.variables]
        return [Path(path).expanduser() for path in given if path]

    def missing(self, wanted: str, tried: Sequence[str | Path], remedy: str, reason: str = "") -> DataNotFound:
        """The one error for data that is nowhere; `remedy` says what the folder must hold."""
        looked = "; ".join(map(str, tried)) or f"nowhere, since {self.variables[0]} is not set"
        why = f" ({reason})" if reason else ""
        return DataNotFound(
            f"{wanted} not found. Looked for: {looked}. Either set {self.variables[0]} (or dataset_kwargs.data_root) "
            f"to {remedy}, or allow a download of {self.size} from {self.repository} on the Hugging Face hub{why}."
        )


def offline_reason() -> str:
    """Why the hub may not be asked, or an empty string."""
    from huggingface_hub import is_offline_mode

    return "HF_HUB_OFFLINE is set" if is_offline_mode() else ""


def cache_folder() -> Path:
    """Folder of this package under ``HF_HOME``, for what it extracts."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "kvcomp_eval"


def full_revision(repository: str, revision: str | None) -> str:
    """Full commit of a branch, tag or abbreviated commit; the hub's download calls take no abbreviated ones."""
    from huggingface_hub import HfApi

    for commit in HfApi().list_repo_commits(repository, repo_type=REPO_TYPE):
        if revision is None or commit.commit_id.startswith(revision):
            return commit.commit_id
    return str(HfApi().dataset_info(repository, revision=revision).sha)


def hub_files(repository: str, commit: str, patterns: Sequence[str]) -> list[Path]:
    """Download the files of the first pattern that matches; none if none does."""
    from huggingface_hub import HfApi, hf_hub_download

    names = HfApi().list_repo_files(repository, repo_type=REPO_TYPE, revision=commit)
    found = ([name for name in names if PurePosixPath(name).match(pattern)] for pattern in patterns)
    wanted = next(filter(None, found), [])
    return [Path(hf_hub_download(repository, name, repo_type=REPO_TYPE, revision=commit)) for name in wanted]


def snapshots(repository: str, revision: str | None) -> list[Path]:
    """Folders of the hub's cache with files of a data set, newest first; those of the commit, if one is named."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE) / f"{REPO_TYPE}s--{repository.replace('/', '--')}" / "snapshots"
    return sorted(folder.glob(f"{revision or ''}*"), key=lambda path: path.stat().st_mtime, reverse=True)


def hub_problem(error: Exception) -> str:
    """Say in a few words why the hub gave no file."""
    from huggingface_hub import errors

    reasons: dict[type[Exception], str] = {  # a gated repository also counts as one that is not found
        errors.GatedRepoError: "the hub wants the licence accepted and a token (HF_TOKEN)",
        errors.RepositoryNotFoundError: "the hub does not know the repository, or wants a token (HF_TOKEN)",
        errors.RevisionNotFoundError: "the hub does not know the revision",
        errors.LocalEntryNotFoundError: "the hub cannot be reached",
        errors.RemoteEntryNotFoundError: "the repository does not hold that file",
    }
    known = (reason for kind, reason in reasons.items() if isinstance(error, kind))
    return next(known, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
