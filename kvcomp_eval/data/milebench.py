"""MileBench (Song et al. 2024, arXiv:2404.18532): find a subset, check it, read it in the official layout.

``<Subset>/<Subset>.json`` beside ``<Subset>/images/``; six archives on the hub hold 29 subsets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvcomp_eval.data.archives import extract_folder, is_archive
from kvcomp_eval.data.sources import (
    REPO_TYPE,
    Benchmark,
    DataDamaged,
    cache_folder,
    full_revision,
    hub_problem,
    offline_reason,
)

REPOSITORY = "FreedomIntelligence/MileBench"
REVISION = "53c7a58"
VARIABLES = ("KVCOMP_MILEBENCH_ROOT", "MILEBENCH_ROOT")

#: Sizes of MileBench_part0.tar.gz to MileBench_part5.tar.gz in GB, and what they hold.
PART_SIZES = (3.97, 2.63, 2.02, 2.46, 2.51, 3.37)
PARTS: tuple[tuple[str, ...], ...] = (
    ("ActionLocalization", "ActionPrediction", "ActionSequence", "ALFRED", "CharacterOrder"),
    ("CLEVR-Change", "CounterfactualInference", "DocVQA", "EgocentricNavigation", "GPR1200"),
    ("IEdit", "ImageNeedleInAHaystack", "MMCoQA", "MovingAttribute", "MovingDirection", "MultiModalQA"),
    ("nuscenes", "ObjectExistence", "ObjectInteraction", "ObjectShuffle", "SceneTransition", "StateChange"),
    ("OCR-VQA", "SlideVQA", "Spot-the-Diff"),
    ("TextNeedleInAHaystack", "TQA", "WebQA", "WikiVQA"),
)
SUBSETS = {subset: part for part, subsets in enumerate(PARTS) for subset in subsets}

#: Annotation file and image folder of each variant; ``combined_1`` shows all images of a sample as one picture.
VARIANTS = {
    "test": ("{subset}.json", "images"),
    "adv": ("{subset}-adv.json", "images"),
    "combined_1": ("{subset}.json", "combined_1_images"),
}

PLACEHOLDER = re.compile(r"\{(?:image|table)#(\d+)\}")


def find_subset(subset: str, data_root: str | None = None, revision: str = REVISION) -> Path:
    """Folder of a subset: in the user's tree, extracted from the user's archive, or from the hub's.

    Parameters
    ----------
    subset : str
        Official name, such as ``CLEVR-Change``.
    data_root : str, optional
        The extracted tree, a folder of archives, or an archive; default: the environment variables' values.
    revision : str
        Commit of the data set on the hub.
    """
    if subset not in SUBSETS:
        raise ValueError(f"MileBench has no subset {subset!r}; it has {', '.join(sorted(SUBSETS, key=str.lower))}.")
    archive = f"MileBench_part{SUBSETS[subset]}.tar.gz"
    size = f"{PART_SIZES[SUBSETS[subset]]} GB ({archive})"
    benchmark = Benchmark("MileBench", VARIABLES, REPOSITORY, revision, size)
    roots = benchmark.roots(data_root)
    tried = [path for root in roots for path in _candidates(root, subset, archive)]
    for path in tried:
        if is_archive(path):
            status = path.stat()
            stamp = f"{path.name.partition('.')[0]}-{status.st_size}-{status.st_mtime_ns}"
            return extract_folder(path, subset, cache_folder() / "milebench" / stamp / subset)
        if (path / f"{subset}.json").is_file():
            return path
    fetched = cache_folder() / "milebench" / revision / subset
    if fetched.is_dir():
        return fetched
    reason, cause = offline_reason(), None
    if not reason:
        try:
            downloaded = _download(archive, revision)
        except Exception as error:  # whatever the hub's client raises, the user needs to know the other way too
            reason, cause = hub_problem(error), error
        else:
            return extract_folder(downloaded, subset, fetched)
    remedy = f"the folder that holds {subset}/{subset}.json, or to {archive}"
    raise benchmark.missing(f"MileBench/{subset}", tried, remedy, reason) from cause


def read_subset(subset: str, folder: Path, variant: str = "test") -> list[dict[str, Any]]:
    """Read and check the samples of a subset.

    Returns
    -------
    list of dict
        ``sample_id``, ``instruction``, ``context``, ``choices`` (empty for open-ended questions), ``images`` (paths),
        ``num_images`` (of the sample: a combined picture still counts as many), ``question_type``, ``answer``.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant={variant!r} is not one of {', '.join(VARIANTS)}.")
    annotation, images = VARIANTS[variant]
    path = folder / annotation.format(subset=subset)
    content = _read_json(path)
    samples = list(_samples(content, path, folder / images, variant))
    if not samples:
        raise DataDamaged(f"{path} has no samples; fetch it again.")
    if len(samples) != content["meta_data"].get("num_sample", len(samples)):
        raise DataDamaged(
            f"{path} has {len(samples)} samples and says {content['meta_data']['num_sample']}; fetch it again."
        )
    absent = sorted({image for sample in samples for image in sample["images"] if not Path(image).is_file()})
    if absent:
        raise DataDamaged(
            f"{path} names {len(absent)} images that are not there, such as {', '.join(absent[:5])}; "
            f"extract MileBench_part{SUBSETS[subset]}.tar.gz again."
        )
    return samples


def _candidates(root: Path, subset: str, archive: str) -> list[Path]:
    """Places under a root where a subset may be."""
    if is_archive(root):
        return [root]
    return [root / subset, root / "MileBench" / subset, root / archive]


def _download(archive: str, revision: str) -> Path:
    """Fetch one archive; huggingface_hub shows the progress and resumes a broken download."""
    from huggingface_hub import hf_hub_download

    commit = full_revision(REPOSITORY, revision)
    return Path(hf_hub_download(REPOSITORY, archive, repo_type=REPO_TYPE, revision=commit))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataDamaged(f"{path.parent} holds no {path.name}; extract that subset again.") from None
    except ValueError as error:
        raise DataDamaged(f"{path} is not valid JSON ({error}); fetch it again.") from error
    if not isinstance(content, dict) or not {"meta_data", "data"} <= content.keys():
        raise DataDamaged(f"{path} is not a MileBench annotation: it needs the keys 'meta_data' and 'data'.")
    return content


def _samples(content: dict[str, Any], path: Path, images: Path, variant: str) -> Iterator[dict[str, Any]]:
    """Bring each sample into one form."""
    for number, sample in enumerate(content["data"]):
        try:
            made = _sample(content["meta_data"], sample, images, variant)
        except KeyError as error:
            raise DataDamaged(f"{path}, sample number {number}: there is no {error}; fetch it again.") from error
        yield made


def _sample(meta: dict[str, Any], sample: dict[str, Any], images: Path, variant: str) -> dict[str, Any]:
    instance = sample["task_instance"]
    named = instance["images_path"]
    shown = instance["combined_1_images"] if variant == "combined_1" else named
    return {
        "sample_id": str(sample["sample_id"]),
        "instruction": _numbered(meta["task_instruction"])[int(sample["task_instruction_id"])],
        "context": instance["context"],
        "choices": [str(choice) for choice in instance.get("choice_list", [])],
        "images": [str(images / image) for image in shown],
        "num_images": len(named),
        "question_type": meta["question_type"],
        "answer": str(sample["response"]),
    }


def _numbered(instructions: str | list[str] | dict[str, str]) -> dict[int, str]:
    """Task instructions by number; the official files have a list, other copies one string or a dict."""
    if isinstance(instructions, str):
        return {0: instructions}
    if isinstance(instructions, dict):
        return {int(number): text for number, text in instructions.items()}
    return dict(enumerate(instructions))
