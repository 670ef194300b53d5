"""Low-rank adapters train on every grid as beside a serial model in plain PyTorch, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from runtime.parallel.mesh import Mesh
from tests.runtime import equal, parity
from tests.runtime.test_families import GRIDS, LLAMA, NEOX, name
from twin.description.lora import Lora, check
from twin.description.model import Model
from twin.strategies.four_d.grid import AXES, Grid

EVERY = ["q", "k", "v", "o", "gate", "up", "down"]
QWEN3 = {**LLAMA, "kv_heads": 4, "head_width": 12, "qk_norm": True, "tied_embeddings": True}
SHAPES: dict[str, dict[str, Any]] = {"gpt": {}, "llama": {**LLAMA, "kv_heads": 4}, "qwen3": QWEN3, "neox": NEOX}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "all": ("llama", {"rank": 3, "targets": EVERY}, {"recompute": True}),
    "queries and values": ("llama", {}, {}),
    "the last alone": ("gpt", {"rank": 5, "alpha": 2.5, "targets": ["down"]}, {"recompute": True}),
    "the middle": ("neox", {"rank": 2, "targets": ["o", "up"]}, {"gather_unit": "block"}),
    "tied, sharded": ("qwen3", {"targets": ["k", "gate"]}, {"data_reduction": {"mode": "sharded"}}),
    "tied, overlapped": (
        "qwen3",
        {"targets": EVERY},
        {"data_reduction": {"mode": "overlapped", "bucket": "1 KiB"}, "overlap": {"all_reduce": False}},
    ),
    "fused": ("gpt", {"targets": ["q", "o", "up"]}, {"fused_elementwise": True, "dropout": 0.0}),
    "not clipped": ("gpt", {"targets": ["k", "v"]}, {"clip_gradients": False}),
    "products kept": (
        "llama",
        {"rank": 3, "targets": ["q", "o", "down"]},
        {"recompute": True, "recompute_keeps": "products"},
    ),
    "stops early": ("llama", {"rank": 2, "targets": ["k", "down"]}, {"recompute": True, "recompute_stops_early": True}),
    "attention kept": (
        "gpt",
        {"targets": ["v", "o", "up", "down"]},
        {"recompute": True, "recompute_keeps": "attention", "attention": "flash"},
    ),
}
"""A shape, adapters, other options."""
ONCE = dict(zip(CASES, [*GRIDS, *GRIDS], strict=False))
"""Every case on a grid, and nearly every grid with a case."""
STEPS = 4


def options_of(case: str) -> dict[str, Any]:
    shape, lora, options = CASES[case]
    return {"model": {**parity.MODEL, **SHAPES[shape]}, "lora": lora, **options}


@pytest.mark.quick
@pytest.mark.parametrize("case", ["all", "tied, overlapped", "the middle"])
def test_trains_as_beside_the_serial_model(pool, case):
    equal.check(pool, dict.fromkeys(AXES, 1) | {"z": 2, "y": 2}, options_of(case), "float64", STEPS)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("grid", GRIDS, ids=name)
def test_trains_so_on_every_grid_of_four_ranks(pool, grid, case):
    equal.check(pool, grid, options_of(case), "float64", STEPS)


def alone(**options: Any) -> Any:
    job = parity.describe(dict.fromkeys(AXES, 1), **options)
    return parity.build(job, Mesh.alone(Grid()), torch.float64)


@pytest.mark.parametrize("case", CASES)
def test_adapters_that_have_not_trained_change_nothing(case):
    options = options_of(case)
    adapted = alone(**options)
    del options["lora"]
    plain = alone(**options)
    window = parity.windows()[0]
    with torch.no_grad():
        assert torch.equal(adapted.model(window[:, :-1]), plain.model(window[:, :-1]))


@pytest.mark.parametrize("case", CASES)
def test_nothing_else_trains(case):
    trainee = alone(**options_of(case))
    store = trainee.context.store
    before = store.compute.clone()
    window = parity.windows()[0][:8]
    weights = torch.full(window[:, 1:].shape, 1.0 / window[:, 1:].numel(), dtype=torch.float64)
    trainee.step([parity.MicroBatch(0, window[:, :-1], window[:, 1:], weights)], 1e-2)
    assert torch.equal(store.compute[store.elements :], before[store.elements :])
    assert not torch.equal(store.compute[: store.used], before[: store.used])
    adapters = [p for p in store.parameters.values() if p.spec.adapter]
    assert sum(p.shard.stored for p in adapters) == store.used
    job = trainee.context.job
    assert store.used == job.lora.parameters(job.model)
    assert all(p.weight.grad is None for p in store.parameters.values())


def test_first_numbers_are_those_of_peft():
    trainee = alone(model={**parity.MODEL, "hidden": 512}, lora={"rank": 64, "targets": ["q"]})
    parameters = trainee.context.store.parameters
    a, b = (parameters[f"blocks.1.qkv.adapters.q_{side}"].weight.detach() for side in "ab")
    bound = 512**-0.5  # kaiming_uniform with a = √5
    assert float(a.abs().max()) <= bound
    assert float(a.std()) == pytest.approx(bound / 3**0.5, rel=0.02)
    assert np.histogram(a.numpy(), 4, (-bound, bound))[0] == pytest.approx(a.numel() / 4, rel=0.05)
    assert not b.any()


def test_bad_adapters_are_refused_by_name():
    model = Model(layers=1, hidden=8, heads=2, sequence=4, vocabulary=5)
    found = check(Lora(targets=("q", "gate", "q")), model)
    assert [problem.path for problem in found] == ["lora.targets.1", "lora.targets.2"]
    assert "SwiGLU" in found[0].message
    assert [problem.path for problem in check(Lora(targets=()), model)] == ["lora.targets"]
