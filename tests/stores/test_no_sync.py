"""A decode step never waits for the device: no scalar is read, no shape depends on data."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvcomp_eval import attach, make_method
from kvcomp_eval.methods.registry import method_names, method_parameters
from tests.families import build, prompt_inputs
from tests.head_scores import made_up_scores

#: Operations whose result the host has to know before it can go on.
WAITING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::repeat_interleave.Tensor",
    "aten::equal",
}


class NoWaiting(TorchDispatchMode):
    """Fails on what would synchronise with a GPU."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        indices = args[1] if name.startswith(("aten::index.", "aten::index_put")) else ()
        by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        if name in WAITING or by_mask:
            raise AssertionError(f"{name} waits for the device")
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def qwen():
    return build("qwen2_5_vl")


def parameters(name):
    known = method_parameters(name)
    wanted = {"window": 4, "page": 4, "head_scores": made_up_scores(), "chunk_size": 2, "theta_quantile": 0.5}
    wanted["branching"] = False  # as on a GPU
    return {key: value for key, value in wanted.items() if key in known}


CASES = [(name, {}) for name in method_names() if name not in ("full", "prefill_oracle")] + [
    ("h2o", {"decode": "rolling"}),
    ("rcr", {"per_head": True, "centred": True}),
    ("rcr", {"update": "step"}),
    ("hybridkv", {"refresh": "rate"}),
]


@pytest.mark.parametrize(("name", "extra"), CASES, ids=[f"{name} {extra or ''}" for name, extra in CASES])
def test_decode_step_does_not_wait(qwen, images, name, extra):
    model, processor = qwen
    inputs = prompt_inputs("qwen2_5_vl", processor, [[images[0]], [images[1]]], ["hello", "what is it?"])
    with attach(model, make_method(name, budget_entries=16, **parameters(name), **extra)) as session:
        model.generate(**inputs, max_new_tokens=3, do_sample=False)
        layer = session.last_cache.packed_layers[-1]
        generator = torch.Generator().manual_seed(0)
        queries = torch.randn(2, 8, 1, 8, generator=generator)
        keys, values = torch.randn(2, 2, 2, 1, 8, generator=generator)
        with NoWaiting():
            for _ in range(3):
                layer.store.step(queries, keys, values, 0.3)


def test_the_watch_works():
    with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(2).sum().item()
    with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(2)[torch.tensor([True, False])]


def test_branching_rcr_waits(qwen, images):
    """The comparison version has to know on the host whether anything refreshes."""
    model, processor = qwen
    inputs = prompt_inputs("qwen2_5_vl", processor, [[images[0]]], ["hello"])
    with attach(model, make_method("rcr", budget_entries=16, window=4, branching=True)) as session:
        model.generate(**inputs, max_new_tokens=3, do_sample=False)
        store = session.last_cache.packed_layers[-1].store
        one = torch.randn(1, 2, 1, 8)
        with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
            store.step(torch.randn(1, 8, 1, 8), one, one, 0.3)
