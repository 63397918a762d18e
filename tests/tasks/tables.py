"""Benchmark data of the exact schema, two or three hand-made rows each, on real photographs and clips."""

from __future__ import annotations

import json
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Image, List, Value
from PIL.Image import Image as Picture

from tests.tasks.media import clip, photograph, printed_page


def png(picture: Picture) -> bytes:
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def write_detailcaps(root: Path) -> Path:
    """One parquet file; image bytes in ``binary``, three references, other models' captions beside them."""
    captions = {
        "astronaut": "A smiling astronaut in an orange suit stands before a flag and a model of a space shuttle.",
        "coffee": "A white cup of coffee on a saucer stands on a wooden table, with a spoon beside it.",
        "chelsea": "A close view of a tabby cat with green eyes that looks past the camera.",
    }
    rows = [
        {
            "source": "sa1b",
            "image": f"{name}.png",
            "binary": png(photograph(name)),
            "CogVLM": "A picture.",
            "GT_Caption_GPT4O": caption,
            "GT_Caption_GPT4V": caption.replace("A ", "The "),
            "GT_Caption_Gemini15Pro": f"{caption} The light is soft.",
        }
        for name, caption in captions.items()
    ]
    return _parquet(rows, root / "DetailCaps-4870.parquet")


def write_textcaps(root: Path) -> Path:
    rows = [
        {
            "image": {"bytes": png(printed_page()), "path": None},
            "image_id": "page",
            "image_classes": ["Book"],
            "caption_str": ["A page of a book with printed text.", "A printed page.", "Text on a page of paper."],
        },
        {
            "image": {"bytes": png(photograph("rocket")), "path": None},
            "image_id": "rocket",
            "image_classes": ["Rocket"],
            "caption_str": ["A rocket stands on its launch pad.", "A white rocket before its start."],
        },
    ]
    features = _features(rows[0], image=Image(), image_classes=List(Value("string")), caption_str=List(Value("string")))
    return _parquet(rows, root / "val-00000-of-00001.parquet", features)


def write_textvqa(root: Path) -> Path:
    answers = ["coca-cola"] * 4 + ["coke"] * 3 + ["Coca Cola"] * 2 + ["soda"]
    rows = [
        {
            "image": {"bytes": png(printed_page()), "path": None},
            "image_id": "page",
            "question_id": 34602,
            "question": "what does the page show?",
            "answers": answers,
            "ocr_tokens": ["Region-based", "segmentation"],
        },
        {
            "image": {"bytes": png(photograph("coffee")), "path": None},
            "image_id": "coffee",
            "question_id": 34603,
            "question": "IS there text?",
            "answers": ["no"] * 10,
            "ocr_tokens": [],
        },
    ]
    lists = {name: List(Value("string")) for name in ("answers", "ocr_tokens")}
    return _parquet(rows, root / "validation-00000-of-00001.parquet", _features(rows[0], image=Image(), **lists))


def write_vatex(root: Path) -> Path:
    rows = [
        {"videoID": "bigbuckbunny", "enCap": ["A big rabbit stands in a meadow.", "A cartoon rabbit walks on grass."]},
        {"videoID": "bikes", "enCap": ["People ride bikes through a city.", "A street with many bikes."]},
    ]
    return _with_videos(root, "vatex_public_test_english_v1.1.json", rows, ("bigbuckbunny", "bikes"))


def write_nextqa(root: Path) -> Path:
    """The CSV of NExT-OE's test split, videos by number in a subfolder, as NExT-QA's mapping has them."""
    header = "video,frame_count,width,height,question,answer,qid,type,additional_ref_answer"
    lines = [
        header,
        "2400171624,132,1280,720,what is the rabbit doing,stand on the grass,3,DO,standing",
        "2400171624,132,1280,720,how many rabbits are there,one,4,DC,",
        "5333075105,250,640,272,why did the man get on the bike,go home,0,CW,to ride home",
    ]
    (root / "NExTVideo").mkdir(parents=True, exist_ok=True)
    shutil.copy(clip("bigbuckbunny"), root / "NExTVideo" / "2400171624.mp4")
    shutil.copy(clip("bikes"), root / "NExTVideo" / "5333075105.mp4")
    (root / "test.csv").write_text("\n".join(lines) + "\n")
    return root


def write_videochatgpt(root: Path) -> Path:
    """The three question files of the benchmark's authors beside the videos."""
    names = ("v_p1QGn0IzfW0", "v_bikes")
    root.mkdir(parents=True, exist_ok=True)
    generic = [
        {"Q": "What is the video about?", "A": "A rabbit wakes up in a meadow.", "video_name": names[0]},
        {"Q": "What do people ride?", "A": "They ride bikes.", "video_name": names[1]},
    ]
    temporal = [{"Q": "What happens first?", "A": "The rabbit comes out of its hole.", "video_name": names[0]}]
    consistency = [
        {"Q1": "Where are the bikes?", "Q2": "On what do the bikes ride?", "A": "On a street.", "video_name": names[1]},
        {"Q1": "Which animal is it?", "Q2": "Who is shown?", "A": "A rabbit.", "video_name": names[0]},
    ]
    for kind, rows in (("generic", generic), ("temporal", temporal), ("consistency", consistency)):
        (root / f"{kind}_qa.json").write_text(json.dumps(rows))
    shutil.copy(clip("bigbuckbunny"), root / f"{names[0]}.mp4")
    shutil.copy(clip("bikes"), root / f"{names[1]}.mp4")
    return root


def _features(row: dict[str, Any], **known: Any) -> Features:
    rest = {name: Value("int64" if isinstance(value, int) else "string") for name, value in row.items()}
    return Features({**rest, **known})


def _parquet(rows: list[dict[str, Any]], path: Path, features: Features | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_list(rows, features=features).to_parquet(str(path))
    return path.parent


def _with_videos(root: Path, name: str, rows: list[dict[str, Any]], clips: tuple[str, ...]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps(rows))
    for video in clips:
        shutil.copy(clip(video), root / f"{video}.mp4")
    return root
