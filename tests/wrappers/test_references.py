"""The argument ``reference``: uncompressed answers are made once, kept, and never mixed with others."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset

from kvcomp_eval.metrics.pairs import ComparedDocuments
from kvcomp_eval.model_wrappers.references import weights_digest
from tests.families import images
from tests.wrappers.requests import SPLIT, TASK, chat_request, content, run

COMPRESSED = {"budget_ratio": 0.2, "window": 4}
NUM_DOCS = 3


@pytest.fixture
def calls(monkeypatch):
    """Methods of the sessions in which something was generated, one entry a ``generate`` call."""
    from kvcomp_eval.session import Session

    made: list[str] = []
    original = Session.generate

    def generate(self, *args, **kwargs):
        made.append(self.method.name)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Session, "generate", generate)
    return made


def requests(first: str = "What is it?", **generation):
    questions = [first, "And what is that, over there?", "Which one?"]
    pictures = images(NUM_DOCS)
    return [
        chat_request(index, content(picture, question), **generation)
        for index, (picture, question) in enumerate(zip(pictures, questions, strict=True))
    ]


def compared(model, asked):
    """Answers, and the pairs that the wrapper leaves for a task that compares."""
    documents = ComparedDocuments({SPLIT: Dataset.from_dict({"index": list(range(NUM_DOCS))})})
    model.task_dict = {TASK: documents}
    return model.generate_until(asked), documents.pairs


def test_answers_and_references_are_those_of_separate_runs(wrapper, tmp_path):
    full = run(wrapper("qwen2_5_vl_full"), requests())
    alone = run(wrapper("qwen2_5_vl_snapkv", **COMPRESSED), requests())
    assert [answer.text for answer in full] != [answer.text for answer in alone]
    model = wrapper("qwen2_5_vl_snapkv", batch_size=2, reference=f"{tmp_path}/store", **COMPRESSED)
    answers, pairs = compared(model, requests())
    assert answers == alone
    for index, (answer, reference) in enumerate(zip(alone, full, strict=True)):
        assert (pairs[index].answer, pairs[index].reference) == (answer.text, reference.text)
        assert len(pairs[index].reference_tokens) == reference.token_counts.output_tokens


def test_full_equals_its_references(wrapper, tmp_path):
    _, pairs = compared(wrapper("llava_onevision_full", reference=str(tmp_path)), requests())
    assert len(pairs) == NUM_DOCS
    for pair in pairs.values():
        assert pair.answer == pair.reference
        assert tuple(pair.answer_tokens) == pair.reference_tokens


def test_every_reference_is_made_once(wrapper, tmp_path, calls):
    model = wrapper("qwen2_5_vl_snapkv", reference=str(tmp_path), **COMPRESSED)
    run(model, requests()[:2])
    assert calls == ["full", "full", "snapkv", "snapkv"]
    calls.clear()
    run(wrapper("qwen2_5_vl_streamingllm", reference=str(tmp_path), budget_ratio=0.2), requests())
    assert calls == ["full", *["streamingllm"] * 3]
    assert {path.name for path in tmp_path.iterdir()} == {f"{TASK}.jsonl", f"{TASK}.jsonl.lock"}


def test_only_gives_the_references_as_answers(wrapper, tmp_path, monkeypatch, calls):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    full = run(wrapper("qwen2_5_vl_full"), requests())
    calls.clear()
    for made in (["full"] * 3, []):
        answers, pairs = compared(wrapper("qwen2_5_vl_snapkv", reference="only", **COMPRESSED), requests())
        assert calls == made
        assert [answer.text for answer in answers] == [answer.text for answer in full]
        assert [pairs[index].answer for index in range(NUM_DOCS)] == [answer.text for answer in full]
        calls.clear()
    # `auto` finds what `only` made, and keeps another setting in another file.
    run(wrapper("qwen2_5_vl_full", reference="auto"), requests())
    assert len(calls) == NUM_DOCS
    run(wrapper("qwen2_5_vl_full", reference="auto"), requests(max_new_tokens=3))
    assert len(list((tmp_path / "kvcomp_eval" / "references").glob("*.jsonl"))) == 2


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"max_pixels": 40000}, "processor: stored"),
        ({"dtype": "bfloat16"}, "dtype: stored 'torch.float32', now 'torch.bfloat16'"),
        ({"generation": {"max_new_tokens": 3}}, "generation: stored"),
    ],
)
def test_references_of_other_settings_are_refused(wrapper, tmp_path, changed, told):
    run(wrapper("qwen2_5_vl_full", reference=str(tmp_path)), requests())
    generation = changed.pop("generation", {})
    with pytest.raises(RuntimeError, match=f"(?s)ReferenceMismatch.*made under other settings.*{told}"):
        run(wrapper("qwen2_5_vl_full", reference=str(tmp_path), **changed), requests(**generation))


def test_another_document_of_the_same_id_is_refused(wrapper, tmp_path):
    run(wrapper("qwen2_5_vl_full", reference=str(tmp_path)), requests())
    with pytest.raises(RuntimeError, match=f"task {TASK}, doc 0: ReferenceMismatch: .*the data changed"):
        run(wrapper("qwen2_5_vl_full", reference=str(tmp_path)), requests("What was it?"))


def test_other_weights_are_other_weights(wrapper):
    model = wrapper("qwen2_5_vl_full").model
    before = weights_digest(model)
    assert weights_digest(model) == before
    with torch.no_grad():
        model.lm_head.weight += 1e-3
    assert weights_digest(model) != before


def test_comparing_task_without_references_is_refused_before_anything_is_generated(wrapper, calls):
    with pytest.raises(ValueError, match=f"Task {TASK} compares answers .* add reference=auto, .* --model_args"):
        compared(wrapper("qwen2_5_vl_full"), requests())
    assert calls == []


def test_sampling_is_refused(wrapper, tmp_path):
    model = wrapper("qwen2_5_vl_full", reference=str(tmp_path))
    with pytest.raises(RuntimeError, match=f"Task {TASK} samples, .*do_sample=False"):
        run(model, requests(temperature=0.7))


@pytest.mark.parametrize("value", ["onyl", "references"])
def test_what_is_no_folder_is_refused(wrapper, value):
    with pytest.raises(ValueError, match=rf"reference='{value}' is not known; use auto, off, only or a folder"):
        wrapper("qwen2_5_vl_full", reference=value)


def test_file_is_refused(wrapper, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is not known; use auto, off, only or a folder"):
        wrapper("qwen2_5_vl_full", reference=str(tmp_path / "file"))
