"""Low-rank adapters: what the runtime's own step runs is what the twin generates, up to 16,384 ranks."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.recorder import record
from tests.recorder.jobs import some_ranks
from tests.recorder.test_families import Case, described
from tests.tiers import full
from twin.schedule.difference import difference
from twin.schedule.ops import Compute, Start
from twin.strategies.four_d.step import generate

EVERY = {"rank": 16, "targets": ["q", "k", "v", "o", "gate", "up", "down"]}
CASES: dict[str, Case] = {
    "llama 3 8b": ("llama-3-8b", {"z": 4, "y": 2, "x": 2}, {"lora": EVERY}),
    "llama 3 8b, defaults": ("llama-3-8b", {"data": 2, "z": 2}, {"lora": {}, "recompute": False}),
    "llama 3.1 405b": ("llama-3.1-405b", {"data": 16, "z": 64, "y": 8, "x": 2}, {"lora": EVERY}),
    "llama 3.2 1b, sharded": (
        "llama-3.2-1b",
        {"data": 4, "y": 2},
        {"lora": {"targets": ["up"]}, "data_reduction": {"mode": "sharded"}},
    ),
    "qwen 3 0.6b, overlapped": (
        "qwen3-0.6b",
        {"data": 2, "z": 2, "y": 2},
        {"lora": EVERY, "data_reduction": {"mode": "overlapped"}, "overlap": {"all_reduce": False}},
    ),
    "pythia 12b, dropout": ("pythia-12b", {"z": 8, "y": 8}, {"lora": {"targets": ["o", "down"]}, "dropout": 0.1}),
    "llama 3 8b, products kept": (
        "llama-3-8b",
        {"z": 4, "y": 2, "x": 2},
        {"lora": {"targets": ["q", "o", "down"]}, "recompute": True, "recompute_keeps": "products"},
    ),
    "llama 3 8b, attention kept": (
        "llama-3-8b",
        {"data": 2, "z": 2, "y": 2},
        {"lora": EVERY, "recompute": True, "recompute_keeps": "attention", "attention": "flash"},
    ),
    "gpt2, fp32": ("gpt2", {"data": 2, "x": 2}, {"lora": {"targets": ["q", "up"]}, "precision": "fp32"}),
}
QUICK = ("qwen 3 0.6b, overlapped",)


@pytest.mark.parametrize("name", full(CASES, *(set(CASES) - set(QUICK))))
def test_recorded_and_generated_schedules_are_equal(name: str) -> None:
    job = described(CASES[name])
    generated = generate(job)
    for rank in some_ranks(job):
        found = difference(record(job, rank).schedule, generated)
        assert not found, f"rank {rank}: {found}"


@pytest.mark.parametrize("name", CASES)
def test_frozen_weights_have_no_gradients_and_adapters_no_collectives(name: str) -> None:
    preset, grid, options = CASES[name]
    plain: dict[str, Any] = {key: value for key, value in options.items() if key != "lora"}
    with_lora, without = (generate(described((preset, grid, each))).ops for each in (options, plain))

    def of(ops: Any, kind: type, *words: str) -> list[str]:
        return [op.name for op in ops if isinstance(op, kind) and any(word in op.name for word in words)]

    assert not [each for each in of(with_lora, Compute, "weight_gradient") if "lora" not in each]
    assert not of(with_lora, Start, "reduce_scatter_z")
    assert not of(with_lora, Compute, "embedding/gradient", "bias_gradient")
    inside = [set(of(ops, Start, "micro")) for ops in (with_lora, without)]
    assert inside[0] <= inside[1]
    gathers = [sum("all_gather_z" in each for each in names) for names in inside]
    assert gathers[0] == gathers[1]
