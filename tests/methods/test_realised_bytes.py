"""Measured bytes of every static method: equal at equal budgets, within one entry per layer."""

from __future__ import annotations

import pytest
import torch

from kvcomp_eval import make_method
from kvcomp_eval.stores.heads import HeadStore
from tests.head_scores import made_up_scores
from tests.methods.prompts import layers_of_a_prompt

LENGTH, LAYERS, KV_HEADS, DIM = 800, 3, 2, 16
STATIC = {
    "snapkv": {},
    "pyramidkv": {},
    "adakv": {},
    "sparsemm": {"head_scores": None},
    "bacon": {},
    "h2o": {},
    "lookm": {},
    "madakv": {},
    "meda": {},
    "vlcache": {},
    "streamingllm": {},
    "random": {},
}


@pytest.mark.parametrize("ratio", [0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("name", STATIC)
def test_bytes_are_those_of_the_budget(name, ratio):
    extra = {"head_scores": made_up_scores(LAYERS, 2 * KV_HEADS)} if "head_scores" in STATIC[name] else {}
    method = make_method(name, budget_ratio=ratio, **extra)
    views = layers_of_a_prompt(layers=LAYERS, length=LENGTH, kv_heads=KV_HEADS, visual=slice(30, 700))
    plans = method.plan([method.observe(view) for view in views], {})
    held = 0
    for view, plan in zip(views, plans, strict=True):
        store = HeadStore(plan, view.keys[None], view.values[None], starts=[0], reserve=1)
        held += sum(group.slots.prompt_bytes + group.slots.mask_bytes for group in store.groups)
        assert all(group.slots.keys.dtype == torch.float32 for group in store.groups)
    entry = 2 * DIM * 4
    budget = LAYERS * KV_HEADS * round(ratio * LENGTH) * entry
    assert abs(held - budget) <= LAYERS * entry
