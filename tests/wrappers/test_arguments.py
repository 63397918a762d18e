"""What ``--model_args`` accepts, and what every refusal says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import DistributedType
from lmms_eval.utils import simple_parse_args_string

from kvcomp_eval import demo, model_wrappers
from kvcomp_eval.methods.registry import method_names
from kvcomp_eval.model_wrappers import loading
from kvcomp_eval.model_wrappers.arguments import parse_arguments
from kvcomp_eval.model_wrappers.llava_onevision import OnevisionArguments
from kvcomp_eval.model_wrappers.loading import dtype_for, placement
from kvcomp_eval.model_wrappers.qwen2_5_vl import Qwen2_5Arguments
from kvcomp_eval.model_wrappers.qwen2_vl import Qwen2Arguments
from tests.families import FAMILIES


def parse(given: str, method: str | None = "snapkv", kind: type = Qwen2_5Arguments):
    model_id = f"qwen2_5_vl_{method or 'kvcomp'}"
    return parse_arguments(model_id, kind, method, simple_parse_args_string(given))


def refused(given: str, method: str | None = "snapkv", kind: type = Qwen2_5Arguments) -> str:
    with pytest.raises((ValueError, TypeError)) as caught:
        parse(given, method, kind)
    return str(caught.value)


def test_values_arrive_typed():
    arguments, method = parse("pretrained=x,batch_size=3,fps=1,min_pixels=10,max_pixels=20,budget_ratio=0.25,window=8")
    assert (arguments.pretrained, arguments.batch_size, arguments.fps) == ("x", 3, 1.0)
    assert isinstance(arguments.fps, float)
    assert (method.name, method.budget_ratio, method.window) == ("snapkv", 0.25, 8)


def test_command_line_batch_size_is_a_string():
    assert parse_arguments("qwen2_5_vl_full", Qwen2_5Arguments, "full", {"batch_size": "4"})[0].batch_size == 4


def test_defaults_are_the_stock_wrappers():
    qwen2, qwen2_5 = Qwen2Arguments(), Qwen2_5Arguments()
    assert (qwen2.min_pixels, qwen2.max_pixels, qwen2.system_prompt) == (3136, 602112, "You are a helpful assistant.")
    assert (qwen2_5.min_pixels, qwen2_5.max_pixels, qwen2_5.max_num_frames) == (256 * 28 * 28, 1605632, 32)
    assert OnevisionArguments().max_frames_num == 32


def test_stock_name_of_the_attention_argument_is_taken():
    assert parse("attn_implementation=eager")[0].attn == "eager"
    assert parse("use_flash_attention_2=True")[0].attn == "flash_attention_2"
    assert parse("use_flash_attention_2=False,use_cache=True")[0].attn == "sdpa"


def test_none_means_the_default():
    assert parse("fps=None,system_prompt=None")[0].fps is None


def test_unknown_argument_lists_all_and_suggests():
    message = refused("budget_ration=0.1")
    assert "qwen2_5_vl_snapkv has no argument 'budget_ration' (did you mean 'budget_ratio'?)" in message
    assert "Arguments of the wrapper: pretrained, revision, device" in message
    assert "Arguments of method snapkv: budget_ratio, budget_entries" in message


def test_hyper_parameter_of_another_method_is_unknown():
    assert "qwen2_5_vl_snapkv has no argument 'theta'" in refused("theta=0.9")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("batch_size=two", "batch_size='two' of qwen2_5_vl_snapkv must be int."),
        ("fps=fast", "fps='fast' of qwen2_5_vl_snapkv must be float or none."),
        ("interleave_visuals=3", "interleave_visuals=3 of qwen2_5_vl_snapkv must be bool."),
        ("batch_size=0", "batch_size=0 must be at least 1."),
        ("max_num_frames=0", "max_num_frames=0 must be at least 1."),
        ("attn=flash", "attn='flash' is not known; use one of sdpa, flash_attention_2, eager."),
        ("dtype=int8", "dtype='int8' is not known; use one of auto, float32, bfloat16, float16."),
        ("attn=eager,attn_implementation=sdpa", "attn='eager' and attn_implementation='sdpa' contradict; give one"),
        ("min_pixels=100,max_pixels=50", "min_pixels=100 is above max_pixels=50; swap or drop one."),
        ("use_cache=False", "use_cache=False leaves no KV cache to compress; drop the argument."),
        ("max_batch_size=8", "max_batch_size cannot be used with qwen2_5_vl_snapkv: batches are of fixed size"),
        ("max_length=2048", "max_length cannot be used with qwen2_5_vl_snapkv: it has no effect in lmms-eval's"),
        (
            "method=hybridkv",
            "qwen2_5_vl_snapkv is method snapkv, not hybridkv; drop method= or use --model qwen2_5_vl_kvcomp.",
        ),
    ],
)
def test_refusals_of_wrapper_arguments(given, message):
    assert message in refused(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("budget_ratio=0.1,budget_entries=64", "budget_ratio=0.1 and budget_entries=64 exclude each other; give one"),
        ("budget_ratio=10", "budget_ratio=10.0 must lie in (0, 1]"),
        ("budget_ratio=0", "budget_ratio=0.0 must lie in (0, 1]"),
        ("budget_ratio=ten", "budget_ratio='ten' of method snapkv must be float or none."),
        ("budget_entries=0.5", "budget_entries=0.5 of method snapkv must be int or none."),
        ("budget_entries=0", "budget_entries=0 must be at least 1"),
    ],
)
def test_refusals_of_budgets(given, message):
    assert message in refused(given)


def test_jpeg_quality_out_of_range():
    assert "jpeg_quality=101 must lie in 0 to 100" in refused("jpeg_quality=101", kind=Qwen2Arguments)


def test_no_frames_for_onevision():
    assert "max_frames_num=0 must be at least 1." in refused("max_frames_num=0", kind=OnevisionArguments)


def test_open_id_needs_a_method():
    message = refused("budget_ratio=0.1", method=None)
    assert message == f"qwen2_5_vl_kvcomp needs method= in --model_args; methods are: {', '.join(method_names())}."


def test_open_id_with_a_misspelt_method():
    message = refused("method=snapvk,budget_ratio=0.1", method=None)
    assert message.startswith(
        "Method 'snapvk' is not known (did you mean 'snapkv'?); methods are: full, snapkv, hybridkv"
    )


def test_open_id_takes_the_hyper_parameters_of_its_method():
    method = parse("method=hybridkv,budget_entries=64,r=0.5", method=None)[1]
    assert (method.name, method.budget_entries, method.r) == ("hybridkv", 64, 0.5)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "qwen2_5_vl"])
def test_demo_is_for_one_family(family):
    with pytest.raises(ValueError, match=f"pretrained=demo is a Qwen2.5-VL, not a {family}; use --model qwen2_5_vl_"):
        getattr(model_wrappers, f"{family}_full")(pretrained="demo")


def test_demo_runs_in_float32_on_a_cpu_within_its_own_pixel_limits(checkpoint, monkeypatch):
    monkeypatch.setattr(demo, "path", lambda: Path(checkpoint("qwen2_5_vl")))
    model = model_wrappers.qwen2_5_vl_full(pretrained="demo", device="cpu")
    limits = {"shortest_edge": 28 * 28, "longest_edge": 64 * 28 * 28}
    assert model.model.dtype == torch.float32
    assert dict(model.processor.image_processor.size) == limits
    own = model_wrappers.qwen2_5_vl_full(pretrained="demo", device="cpu", max_pixels=3136)
    assert dict(own.processor.image_processor.size) == {**limits, "longest_edge": 3136}


def test_missing_demo_model_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "path", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match=r"The demo model is missing in .*; reinstall kvcomp-eval, or train it"):
        model_wrappers.qwen2_5_vl_full(pretrained="demo")


def test_missing_folder_is_said(wrapper):
    with pytest.raises(FileNotFoundError, match=r"pretrained='\./nowhere' is not a folder; name one, or a model id on"):
        wrapper("qwen2_vl_full", pretrained="./nowhere")


def test_checkpoint_of_another_family_is_refused(wrapper, checkpoint):
    folder = checkpoint("llava_next")
    with pytest.raises(ValueError, match=r"is a llava_next, not a qwen3_vl; use --model llava_next_<method>\."):
        wrapper("qwen3_vl_full", pretrained=folder)


def test_checkpoint_of_an_unknown_family_is_refused(wrapper, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="is a llama, not a qwen2_vl; supported families are qwen2_vl, qwen2_5_vl"):
        wrapper("qwen2_vl_full", pretrained=str(tmp_path))


def test_report_path_must_be_a_file(wrapper, tmp_path):
    with pytest.raises(ValueError, match=r"is a folder; name a file, such as report\.jsonl"):
        wrapper("qwen2_vl_full", report_path=str(tmp_path))


def test_flash_attention_on_a_cpu_is_refused_with_its_reason(wrapper):
    with pytest.raises((ImportError, ValueError), match=r"[Ff]lash"):
        wrapper("qwen2_vl_full", attn="flash_attention_2")


def test_missing_budget_is_said(wrapper, log):
    wrapper("qwen2_vl_snapkv")
    assert any("Neither budget_ratio nor budget_entries is given: the whole prompt is kept." in text for text in log)


def test_versions_are_logged_once(wrapper, log):
    wrapper("qwen2_vl_full")
    (text,) = [text for text in log if text.startswith("Versions: ")]
    assert f"torch {torch.__version__.split('+')[0]}" in text
    assert "transformers 5." in text
    assert "kvcomp-eval 0." in text


def test_device_defaults_to_what_the_machine_has(monkeypatch):
    none, cpu = Qwen2_5Arguments(), Qwen2_5Arguments(device="cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert placement(none, "auto", 1, 0) == (torch.device("cpu"), "cpu")
    assert placement(none, "auto", 2, 1) == (torch.device("cpu"), "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert placement(none, "auto", 1, 0) == (torch.device("cuda"), "auto")
    assert placement(none, "auto", 2, 1) == (torch.device("cuda:1"), "cuda:1")
    assert placement(cpu, "auto", 1, 0) == (torch.device("cpu"), "cpu")
    assert placement(cpu, "auto", 2, 1) == (torch.device("cpu"), "cpu")
    assert placement(Qwen2_5Arguments(device_map="cuda:3"), "auto", 1, 0) == (torch.device("cuda:3"), "cuda:3")


def test_precision_defaults_to_the_stock_wrappers_and_to_float32_for_demo_on_a_cpu():
    plain, demo = Qwen2_5Arguments(), Qwen2_5Arguments(pretrained="demo")
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert dtype_for(plain, "bfloat16", cpu) == torch.bfloat16
    assert dtype_for(plain, "auto", cpu) == "auto"
    assert dtype_for(demo, "bfloat16", cpu) == torch.float32
    assert dtype_for(demo, "bfloat16", cuda) == torch.bfloat16
    assert dtype_for(Qwen2_5Arguments(pretrained="demo", dtype="float16"), "bfloat16", cpu) == torch.float16


def test_sharded_launch_is_refused(monkeypatch):
    class Sharded:
        distributed_type = DistributedType.FSDP

    monkeypatch.setattr(loading, "Accelerator", lambda **_: Sharded())
    with pytest.raises(
        ValueError, match="Launched under FSDP, which shards the model; compression needs a whole model"
    ):
        loading.make_accelerator()
