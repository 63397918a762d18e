"""A MileBench tree in the official layout: two hand-made samples per subset, on real photographs."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from PIL import Image

from kvcomp_eval.data.milebench import SUBSETS
from tests.tasks.media import photograph, save_photograph

#: Subsets scored by ROUGE-L, and the one scored by containment though it is open-ended.
ROUGE = ("ALFRED", "CLEVR-Change", "IEdit", "Spot-the-Diff")
CONTAINED = ("MMCoQA", "TextNeedleInAHaystack", "ImageNeedleInAHaystack")

CHANGE = (
    {
        "context": "{image#1}{image#2}Difference:",
        "images_path": ["0/motorcycle_left.png", "0/motorcycle_right.png"],
        "response": "the camera moved to the right. the motorcycle is further left.",
    },
    {
        "context": "{image#1}{image#2}Difference:",
        "images_path": ["0/chelsea.png", "0/chelsea.png"],
        "response": "there are no changes",
    },
)
QUESTIONS = (
    {
        "context": "Global Table: {table#1} Context: {image#2} {image#3} Question: Which animal lies on the sofa?",
        "images_path": ["0/china.png", "0/chelsea.png", "0/flower.png"],
        "choice_list": ["a cat", "a horse", "a bird", "a fish"],
        "response": "a cat",
    },
    {
        "context": "Context: {image#1} {image#2} {image#3} {image#4} {image#5} {image#6} How many cups are there?",
        "images_path": [f"1/{name}.png" for name in ("coffee", "rocket", "astronaut", "flower", "china", "chelsea")],
        "choice_list": ["1", "12"],
        "response": 1,
    },
)
DIALOGUE = (
    {
        "context": "Who is in the picture? {image#1} An astronaut. Where is she?",
        "images_path": ["0/astronaut.png"],
        "response": "in a studio",
    },
    {
        "context": "Is this a temple? {image#1} {image#2} Yes. In which country?",
        "images_path": ["0/china.png", "0/china.png"],
        "response": "China",
    },
)


def question_type(subset: str) -> str:
    return "open-ended" if subset in ROUGE + CONTAINED else "multi-choice"


def samples(subset: str) -> tuple[dict[str, Any], ...]:
    return CHANGE if subset in ROUGE else DIALOGUE if subset in CONTAINED else QUESTIONS


def annotation(subset: str) -> dict[str, Any]:
    """What ``<subset>.json`` holds."""
    data = []
    for number, instance in enumerate(samples(subset)):
        instance = {**instance, "combined_1_images": [f"{number}-0.jpg"]}
        answer = instance.pop("response")
        data.append(
            {
                "sample_id": number,
                "task_instruction_id": number,
                "task_instance": instance,
                "response": answer,
                "image_quantity_level": "Few",
            }
        )
    instructions = ["What's the difference between 2 images? ", "Look, then answer."]
    meta = {
        "dataset": subset,
        "split": "test",
        "num_sample": len(data),
        "task_instruction": instructions,
        "question_type": question_type(subset),
    }
    return {"meta_data": meta, "data": data}


def write_subset(root: Path, subset: str) -> Path:
    """Write one subset under a root; returns its folder."""
    folder = root / subset
    for number, instance in enumerate(samples(subset)):
        for image in instance["images_path"]:
            save_photograph(Path(image).stem, folder / "images" / image)
        _write_combined(instance["images_path"], folder / "combined_1_images" / f"{number}-0.jpg")
    content = annotation(subset)
    (folder / f"{subset}.json").write_text(json.dumps(content))
    content["meta_data"]["num_sample"] = len(content["data"])
    (folder / f"{subset}-adv.json").write_text(json.dumps({**content, "data": content["data"][::-1]}))
    return folder


def write_tree(root: Path) -> Path:
    """Write all 29 subsets; returns the root."""
    for subset in SUBSETS:
        write_subset(root, subset)
    return root


def write_archive(root: Path, part: int, subsets: tuple[str, ...], folder: Path) -> Path:
    """Pack subsets of a tree as the hub's archive of that number."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"MileBench_part{part}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for subset in subsets:
            tar.add(root / subset, arcname=subset)
    return path


def _write_combined(images: list[str], path: Path) -> None:
    """Paste a sample's images side by side."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = [photograph(Path(image).stem).resize((100, 100)) for image in images]
    sheet = Image.new("RGB", (100 * len(pictures), 100))
    for number, picture in enumerate(pictures):
        sheet.paste(picture, (100 * number, 0))
    sheet.save(path)
