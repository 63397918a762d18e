"""Answers do not depend on the batch, follow the task's generation arguments, and failures name their document."""

from __future__ import annotations

import pytest
import torch
from lmms_eval.models.model_utils.gen_metrics import reset_logged_metrics, summarize_logged_metrics

from tests.families import FAMILIES, QWEN_FAMILIES, images
from tests.wrappers.requests import TASK, chat_request, content, run, video

METHODS = {"full": {}, "snapkv": {"budget_ratio": 0.4, "window": 4}, "hybridkv": {"budget_ratio": 0.4, "window": 4}}


def documents() -> list:
    """Documents of different lengths: one image, two images, none."""
    first, second, third = images(3)
    return [
        content(first, "What is it?"),
        content(second, third, "What changed between these two?"),
        content("No image at all, just these words to think about."),
        content(third, "And this?"),
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_batch_of_three_answers_as_batch_of_one(family, method, wrapper):
    requests = [chat_request(doc_id, document) for doc_id, document in enumerate(documents())]
    alone = run(wrapper(f"{family}_{method}", batch_size=1, **METHODS[method]), requests)
    batch = run(wrapper(f"{family}_{method}", batch_size=3, **METHODS[method]), requests)
    assert batch == alone
    assert len({answer.text for answer in alone}) == len(requests)


def test_answers_come_in_the_order_of_the_requests(wrapper):
    model = wrapper("qwen2_5_vl_full", batch_size=2)
    requests = [
        chat_request(doc_id, content(text), max_new_tokens=length)
        for doc_id, (text, length) in enumerate([("z last", 4), ("a first", 6), ("m middle", 4), ("b second", 6)])
    ]
    together = run(model, requests)
    assert together == [run(model, [request])[0] for request in requests]
    assert [answer.token_counts.output_tokens for answer in together] == [4, 6, 4, 6]


def test_token_counts_are_those_of_the_row(wrapper):
    model = wrapper("qwen2_vl_full", batch_size=2)
    short, long = run(model, [chat_request(0, content("x")), chat_request(1, content("x" * 50))])
    assert long.token_counts.input_tokens - short.token_counts.input_tokens == 49


def test_answer_ends_with_its_end_token(wrapper, lines):
    """Rows of a batch that end early are padded; the padding is no part of the answer."""
    model = wrapper("qwen2_vl_full", batch_size=2, report_path=lines.path)
    requests = [chat_request(0, content("x")), chat_request(1, content("something else"))]
    run(model, requests)
    first, second = (line["answer_tokens"] for line in sorted(lines.read(), key=lambda line: line["doc_id"]))
    end = first[2]
    assert end not in second
    requests[0].args[2]["eos_token_id"] = requests[1].args[2]["eos_token_id"] = end
    answers = run(model, requests)
    assert [answer.token_counts.output_tokens for answer in answers] == [first.index(end) + 1, 8]


@pytest.mark.parametrize("family", FAMILIES)
def test_until_ends_the_answer(family, wrapper):
    model = wrapper(f"{family}_full")
    (whole,) = run(model, [chat_request(0, content("x"), max_new_tokens=24)])
    stop = whole.text[6]
    (ended,) = run(model, [chat_request(0, content("x"), max_new_tokens=24, until=[stop, "never seen"])])
    assert ended.text == whole.text.split(stop)[0] != whole.text
    (ended,) = run(model, [chat_request(0, content("x"), max_new_tokens=24, until=stop)])
    assert ended.text == whole.text.split(stop)[0]


def test_until_of_the_wrong_type(wrapper):
    with pytest.raises(RuntimeError, match="until=3 must be a string or a list of strings"):
        run(wrapper("qwen2_vl_full"), [chat_request(0, content("x"), until=3)])


def captured(model, monkeypatch, **generation) -> dict:
    """Arguments with which ``generate`` is called for a task's generation arguments."""
    seen: dict = {}
    original = type(model.model).generate

    def generate(self, *args, **kwargs):
        seen.update(kwargs)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(type(model.model), "generate", generate)
    run(model, [chat_request(0, content("hello"), **generation)])
    return seen


def test_greedy_is_the_default(wrapper, monkeypatch):
    seen = captured(wrapper("qwen2_5_vl_full"), monkeypatch, temperature=0, top_p=0.9, top_k=5)
    assert (seen["do_sample"], seen["temperature"], seen["top_p"], seen["top_k"]) == (False, None, None, None)
    assert seen["num_beams"] == 1


@pytest.mark.parametrize(("family", "top_k"), [("qwen2_5_vl", None), ("qwen2_vl", "unset"), ("qwen3_vl", "unset")])
def test_sampling_as_in_the_stock_wrapper(family, top_k, wrapper, monkeypatch):
    seen = captured(wrapper(f"{family}_full"), monkeypatch, temperature=0.7, top_p=0.9)
    assert (seen["do_sample"], seen["temperature"], seen["top_p"]) == (True, 0.7, 0.9)
    assert seen.get("top_k", "unset") == top_k


def test_do_sample_false_is_greedy_at_any_temperature(wrapper, monkeypatch):
    assert captured(wrapper("qwen2_vl_full"), monkeypatch, temperature=0.7, do_sample=False)["do_sample"] is False


def test_other_settings_are_passed_on_and_foreign_ones_reported(wrapper, monkeypatch, log):
    seen = captured(
        wrapper("qwen2_vl_full"), monkeypatch, repetition_penalty=1.3, num_beams=2, image_aspect_ratio="original"
    )
    assert (seen["repetition_penalty"], seen["num_beams"]) == (1.3, 2)
    assert "image_aspect_ratio" not in seen
    assert sum("Generation argument 'image_aspect_ratio' of the task" in text for text in log) == 1


def test_default_length_of_an_answer(wrapper, monkeypatch):
    assert captured(wrapper("qwen3_vl_full"), monkeypatch, max_new_tokens=None)["max_new_tokens"] == 128
    assert captured(wrapper("llava_next_full"), monkeypatch, max_new_tokens=None)["max_new_tokens"] == 1024


def test_several_answers_per_prompt_are_refused(wrapper):
    with pytest.raises(RuntimeError, match="num_return_sequences must be 1"):
        run(wrapper("qwen2_vl_full"), [chat_request(0, content("x"), num_return_sequences=2)])


def test_failure_names_task_and_document(wrapper):
    model = wrapper("llava_next_full", batch_size=2)
    bad = content({"type": "image", "url": "missing.png"}, "?")
    with pytest.raises(RuntimeError, match=f"task {TASK}, doc 7: .*missing.png") as caught:
        run(model, [chat_request(7, bad)])
    assert caught.value.__cause__ is not None
    with pytest.raises(RuntimeError, match=f"task {TASK}, doc 0; task {TASK}, doc 7: .*missing.png"):
        run(model, [chat_request(0, content("fine")), chat_request(7, bad)])


def test_unsupported_generation_is_refused_by_the_core_with_the_document(wrapper):
    with pytest.raises(
        RuntimeError, match=r"doc 3: ValueError: generate\(prompt_lookup_num_tokens=2\) is not supported"
    ):
        run(wrapper("qwen2_vl_full"), [chat_request(3, content("x"), prompt_lookup_num_tokens=2)])


def test_model_is_stock_again_after_a_run_and_after_a_failure(wrapper):
    model = wrapper("qwen2_vl_snapkv", budget_ratio=0.5)
    run(model, [chat_request(0, content("x"))])
    assert "generate" not in vars(model.model)
    with pytest.raises(RuntimeError):
        run(model, [chat_request(0, content("x"), until=3)])
    assert "generate" not in vars(model.model)
    assert model.model.config.get_text_config()._attn_implementation == "sdpa"


def test_video_for_llava_next_is_refused(wrapper, carphone):
    with pytest.raises(RuntimeError, match="The document has a video, and llava_next reads images only"):
        run(wrapper("llava_next_full"), [chat_request(0, content(video(carphone), "?"))])


def test_audio_is_refused(wrapper):
    with pytest.raises(RuntimeError, match="The document has audio; these models read text, images and video only"):
        run(wrapper("qwen2_vl_full"), [chat_request(0, content({"type": "audio", "url": "a.wav"}, "?"))])


@pytest.mark.parametrize("family", FAMILIES)
def test_log_likelihood_and_rounds_are_refused(family, wrapper):
    model, request = wrapper(f"{family}_snapkv", budget_ratio=0.5), chat_request(0, content("x"))
    with pytest.raises(NotImplementedError, match=f"generates answers only; task {TASK} needs log-likelihoods"):
        model.loglikelihood([request])
    with pytest.raises(NotImplementedError, match=f"answers one prompt at a time; task {TASK} needs several rounds"):
        model.generate_until_multi_round([request])


def test_padding_copies_get_their_answer_and_are_not_counted(wrapper, lines):
    model = wrapper("qwen2_vl_full", report_path=lines.path)
    copy = chat_request(1, content("second"), metadata={"__padding_only__": True})
    reset_logged_metrics()
    answers = run(model, [chat_request(0, content("first")), chat_request(1, content("second")), copy, copy])
    assert answers[2] == answers[3] == answers[1] != answers[0]
    assert len(lines.read()) == 2
    assert summarize_logged_metrics()["total_gen_tokens"] == sum(len(line["answer_tokens"]) for line in lines.read())


def test_no_requests(wrapper):
    assert wrapper("qwen2_vl_full").generate_until([]) == []


def test_side_file_and_results_hold_the_realised_bytes(wrapper, lines):
    model = wrapper("qwen2_5_vl_snapkv", budget_ratio=0.25, window=4, batch_size=2, report_path=lines.path)
    reset_logged_metrics()
    requests = [chat_request(doc_id, document) for doc_id, document in enumerate(documents())]
    answers = run(model, requests)
    written = sorted(lines.read(), key=lambda line: line["doc_id"])
    assert [(line["task"], line["doc_id"], line["answer"]) for line in written] == [
        (TASK, doc_id, answer.text) for doc_id, answer in enumerate(answers)
    ]
    assert [len(line["answer_tokens"]) for line in written] == [8] * 4
    reports = [line["report"] for line in written]
    assert all(report["method"] == "snapkv" for report in reports)
    device = sum(report["device_bytes"] / line["batch"] for report, line in zip(reports, written, strict=True))
    full = sum(report["full_bytes"] / line["batch"] for report, line in zip(reports, written, strict=True))
    results = summarize_logged_metrics()
    assert results["avg_device_bytes"] == pytest.approx(device / 4)
    assert results["avg_realised_ratio"] == pytest.approx(device / full)
    assert 0.2 < results["avg_realised_ratio"] < 0.35
    assert {"avg_host_bytes", "avg_index_bytes", "avg_full_bytes", "avg_kept_entries"} <= set(results)


def test_side_file_is_appended_to(wrapper, lines):
    for doc_id in range(2):
        run(wrapper("qwen2_vl_full", report_path=lines.path), [chat_request(doc_id, content("x"))])
    assert [line["doc_id"] for line in lines.read()] == [0, 1]


@pytest.mark.parametrize("family", QWEN_FAMILIES)
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_prefill_backends_agree(family, attn, wrapper):
    requests = [chat_request(doc_id, document) for doc_id, document in enumerate(documents())]
    default = run(wrapper(f"{family}_snapkv", budget_ratio=0.5), requests)
    assert run(wrapper(f"{family}_snapkv", budget_ratio=0.5, attn=attn), requests) == default


@pytest.mark.parametrize("family", FAMILIES)
def test_stock_precisions_run(family, wrapper):
    model = wrapper(f"{family}_hybridkv", budget_ratio=0.5, dtype="bfloat16", window=4)
    assert model.model.dtype == torch.bfloat16
    assert all(answer.text is not None for answer in run(model, [chat_request(0, documents()[0])]))
