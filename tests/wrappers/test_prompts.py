"""Prompt arguments, and videos of every kind."""

from __future__ import annotations

import sys
from typing import Any

import av
import numpy as np
import pytest
import torch

from kvcomp_eval.model_wrappers.messages import chat_messages, with_interleaved_visuals, with_reasoning_prompt
from kvcomp_eval.model_wrappers.video import (
    DecordReader,
    PyAVReader,
    llava_video,
    open_video,
    qwen_frame_indices,
    qwen_video,
)
from tests.families import QWEN_FAMILIES, VIDEO_FAMILIES, images
from tests.wrappers.requests import chat_request, content, run, video


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Write an mp4 of a number of frames, each of its own brightness."""

    def write(frames: int) -> str:
        path = str(tmp_path_factory.mktemp("clips") / f"{frames}.mp4")
        with av.open(path, "w") as container:
            stream = container.add_stream("mpeg4", rate=8)
            stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
            for index in range(frames):
                picture = np.full((64, 96, 3), 10 + 8 * index, dtype=np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
        return path

    return write


def prompt(model: Any, messages: list[dict[str, Any]]) -> str:
    """The text that the model reads for a document."""
    inputs = model.prepare([chat_messages(messages)])
    return model.tokenizer.decode(inputs["input_ids"][0])


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
@pytest.mark.parametrize("frames", [1, 3, 5])
def test_video_shorter_than_the_frames_asked_for(family, frames, wrapper, clip):
    (answer,) = run(wrapper(f"{family}_full"), [chat_request(0, content(video(clip(frames)), "What happens?"))])
    assert answer.token_counts.output_tokens == 8


@pytest.mark.parametrize("family", QWEN_FAMILIES)
def test_batch_with_video_image_and_text_answers_as_alone(family, wrapper, clip):
    documents = [
        content(video(clip(5)), "What happens?"),
        content(images(1)[0], video(clip(3)), "And here?"),
        content("Words only."),
        content(video(clip(9)), "A longer one?"),
    ]
    requests = [chat_request(doc_id, document) for doc_id, document in enumerate(documents)]
    arguments = {"budget_ratio": 0.5, "window": 4, "max_num_frames": 4}
    alone = run(wrapper(f"{family}_snapkv", **arguments), requests)
    assert run(wrapper(f"{family}_snapkv", batch_size=4, **arguments), requests) == alone


def test_frames_are_even_in_number_and_spread():
    assert qwen_frame_indices({"nframes": 4}, 0, 119, 120, 30.0) == [0, 40, 79, 119]
    assert qwen_frame_indices({"nframes": 32}, 0, 4, 5, 30.0) == [0, 1, 3, 4]
    assert qwen_frame_indices({"nframes": 1}, 0, 4, 5, 30.0) == [0, 4]
    assert qwen_frame_indices({"nframes": 8}, 7, 7, 1, 30.0) == [7, 7]
    assert len(qwen_frame_indices({"fps": 2.0}, 0, 119, 120, 30.0)) == 8


@pytest.mark.parametrize("reader", [DecordReader, PyAVReader])
def test_readers_give_the_frames_asked_for(reader, clip):
    if reader is DecordReader:
        pytest.importorskip("decord")
    opened = reader(clip(12))
    frames = opened.frames([0, 5, 5, 11])
    assert (len(opened), opened.fps, frames.shape) == (12, 8.0, (4, 64, 96, 3))
    assert np.abs(frames.mean((1, 2, 3)) - [10, 50, 50, 98]).max() < 3


def test_readers_agree_on_a_real_video(carphone):
    pytest.importorskip("decord")
    ours, theirs = PyAVReader(carphone), DecordReader(carphone)
    assert len(ours) == len(theirs)
    assert ours.fps == pytest.approx(theirs.fps)
    indices = [0, 17, 60, 119]
    difference = ours.frames(indices).astype(int) - theirs.frames(indices)
    assert np.abs(difference).mean() < 2


def test_pyav_takes_over_where_decord_is_missing(carphone, monkeypatch):
    monkeypatch.setitem(sys.modules, "decord", None)
    assert open_video(carphone).backend == "pyav"
    frames, metadata = qwen_video({"video": carphone, "nframes": 4}, 14)
    assert (frames.shape[0], metadata["video_backend"], metadata["frames_indices"]) == (4, "pyav", [0, 40, 79, 119])
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match="Reading videos needs decord or av; install one of them"):
        open_video(carphone)


def test_unreadable_video_is_named(tmp_path):
    broken = tmp_path / "broken.mp4"
    broken.write_text("no video")
    with pytest.raises(ValueError, match=r"Video '.*broken.mp4' cannot be read"):
        open_video(str(broken))


def test_time_range_of_a_video(carphone, clip):
    _, metadata = qwen_video({"video": carphone, "nframes": 2, "video_start": 1.0, "video_end": 2.0}, 14)
    fps = metadata["fps"]
    assert metadata["frames_indices"] == [int(np.ceil(fps)), int(2 * fps)]
    chat = chat_messages(content(video({"url": clip(12), "video_start": 0.5, "video_end": 1.0})))
    (part,) = chat.messages[0].content
    assert (part.start_time, part.end_time) == (0.5, 1.0)
    frames = llava_video(part.url, 2, part.start_time, part.end_time)
    assert np.abs(frames.mean((1, 2, 3)) - [42, 74]).max() < 3


def test_video_as_a_list_of_frames(wrapper):
    frames = images(5, [(84, 56)])
    assert llava_video(frames, 3).shape == (3, 56, 84, 3)
    (answer,) = run(wrapper("qwen2_5_vl_full"), [chat_request(0, content(video(frames), "?"))])
    assert answer.token_counts.output_tokens == 8


@pytest.mark.parametrize("family", QWEN_FAMILIES)
def test_system_prompt(family, wrapper):
    default = "" if family == "qwen2_5_vl" else "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    assert prompt(wrapper(f"{family}_full"), content("Hi")).startswith(default + "<|im_start|>user\nHi")
    own = wrapper(f"{family}_full", system_prompt="Be brief.")
    assert prompt(own, content("Hi")).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")
    brought = [{"role": "system", "content": [{"type": "text", "text": "Mine."}]}, *content("Hi")]
    assert prompt(own, brought).startswith("<|im_start|>system\nMine.<|im_end|>\n<|im_start|>user\nHi")


def test_reasoning_prompt(wrapper):
    model = wrapper("qwen2_5_vl_full", reasoning_prompt="\\nThink first.")
    assert "user\nHi\nThink first.<|im_end|>" in prompt(model, content("Hi "))
    with pytest.raises(ValueError, match="reasoning_prompt needs a user message with text"):
        with_reasoning_prompt(chat_messages(content(images(1)[0])), "x")


def test_interleaved_visuals():
    first, second, third = images(3)
    chat = with_interleaved_visuals(chat_messages(content(first, second, third, "A <image 3> B <image 1>.")))
    order = [part.text if part.type == "text" else part.url for part in chat.messages[0].content]
    assert order == [second, "A ", third, " B ", first, "."]


def test_interleaved_visuals_through_the_wrapper(wrapper):
    text = prompt(wrapper("qwen2_vl_full", interleave_visuals=True), content(images(1)[0], "A <image 1> B"))
    assert text.index("A ") < text.index("<|vision_start|>") < text.index(" B")


def test_interleaved_visual_that_is_not_there(wrapper):
    model = wrapper("qwen2_vl_full", interleave_visuals=True)
    with pytest.raises(RuntimeError, match="The prompt names <image 2>, but the document has 1 images"):
        run(model, [chat_request(0, content(images(1)[0], "A <image 2>"))])


def test_llava_chat_template_as_text_or_file(wrapper, tmp_path):
    template = "{% for message in messages %}Q: {{ message['content'][0]['text'] }} A:{% endfor %}"
    assert prompt(wrapper("llava_next_full", chat_template=template), content("Hi")) == "Q: Hi A:"
    (tmp_path / "template.jinja").write_text(template)
    model = wrapper("llava_next_full", chat_template=str(tmp_path / "template.jinja"))
    assert prompt(model, content("Hi")) == "Q: Hi A:"


def test_thoughts_are_cut_if_thinking_is_on(wrapper):
    model = wrapper("qwen3_vl_full", enable_thinking=True)
    assert model.finish("<think>so</think> yes ") == "yes"
    assert wrapper("qwen3_vl_full").finish("a </think> b") == "a </think> b"


def test_total_pixels_bound_a_video_of_qwen3(wrapper, carphone):
    few = wrapper("qwen3_vl_full", total_pixels=8 * 4096, max_num_frames=8, min_pixels=1024)
    many = wrapper("qwen3_vl_full", max_num_frames=8, min_pixels=1024)
    chat = [chat_messages(content(video(carphone), "?"))]
    sizes = [model.prepare(chat)["video_grid_thw"] for model in (few, many)]
    assert torch.prod(sizes[0]) < torch.prod(sizes[1])
