"""Models of other families: what the runtime's own step runs is what the twin generates, up to 16,384 ranks."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.recorder import record
from tests.profiles import part
from tests.recorder.jobs import some_ranks
from tests.tiers import full
from twin.description.presets import presets
from twin.schedule.difference import difference
from twin.strategies import load_job
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.step import generate

BUCKETS: dict[str, Any] = {"data_reduction": {"mode": "overlapped", "bucket": "64 MiB"}}
SHARDED: dict[str, Any] = {"data_reduction": {"mode": "sharded"}}
Case = tuple[str, dict[str, int], dict[str, Any]]
CASES: dict[str, Case] = {
    "llama 2 7b": ("llama-2-7b", {"z": 8}, {}),
    "llama 2 70b": ("llama-2-70b", {"data": 4, "z": 16, "y": 8}, {}),
    "llama 3 8b": ("llama-3-8b", {"z": 4, "y": 2, "x": 2}, {"recompute": False}),
    "llama 3 70b": ("llama-3-70b", {"data": 2, "z": 32, "y": 4, "x": 2}, BUCKETS),
    "llama 3.1 405b": ("llama-3.1-405b", {"data": 16, "z": 64, "y": 8, "x": 2}, {}),
    "llama 3.1 405b, blocks": ("llama-3.1-405b", {"data": 8, "z": 512, "y": 4}, {"gather_unit": "block", **SHARDED}),
    "llama 3.2 1b": ("llama-3.2-1b", {"z": 4, "y": 2}, {}),
    "llama 3.2 1b, buckets": ("llama-3.2-1b", {"data": 4, "z": 2, "y": 4}, BUCKETS),
    "llama 3.2 3b, sharded": ("llama-3.2-3b", {"data": 8, "y": 2, "x": 3}, SHARDED),
    "mistral 7b": ("mistral-7b", {"data": 2, "y": 8}, {"attention": "plain"}),
    "qwen 2.5 0.5b": ("qwen2.5-0.5b", {"z": 2, "y": 2}, {"recompute": False}),
    "qwen 2.5 7b": ("qwen2.5-7b", {"z": 4, "y": 4, "x": 4}, {"fused_elementwise": True}),
    "qwen 2.5 72b": ("qwen2.5-72b", {"data": 8, "z": 64, "y": 8}, {}),
    "qwen 3 0.6b": ("qwen3-0.6b", {"y": 4, "x": 2}, {}),
    "qwen 3 0.6b, buckets": ("qwen3-0.6b", {"data": 2, "z": 2, "y": 2}, BUCKETS),
    "qwen 3 32b": ("qwen3-32b", {"z": 32, "y": 4, "x": 4}, {"recompute": False}),
    "qwen 3 0.6b, cpu": ("qwen3-0.6b", {"z": 2, "y": 2}, {"machine": "laptop"}),
    "qwen 3 0.6b, cpu, split": ("qwen3-0.6b", {"y": 2, "x": 2}, {"machine": "laptop"}),
    "smollm2": ("smollm2-135m", {"data": 2, "z": 2, "y": 3}, {"precision": "fp32"}),
    "pythia 160m": ("pythia-160m", {"z": 2, "y": 2, "x": 2}, {}),
    "pythia 12b": ("pythia-12b", {"data": 2, "z": 8, "y": 8}, {"recompute": False}),
    "neox 20b": ("gpt-neox-20b", {"data": 4, "z": 12, "y": 2, "x": 2}, {"dropout": 0.1}),
    "neox 20b, fused": ("gpt-neox-20b", {"z": 96}, {"dropout": 0.1, "fused_elementwise": True}),
    "gpt2, tied": ("gpt2", {"data": 2, "z": 2, "y": 2, "x": 2}, {"tied": True}),
}
QUICK = ("llama 3.2 1b, buckets", "qwen 3 0.6b, cpu", "qwen 3 0.6b", "llama 3.1 405b")


def described(case: Case) -> FourDJob:
    """Two of the model's layers, for time; one but for the micro-steps is like another."""
    preset, grid, options = case
    model: dict[str, Any] = {"preset": preset, "layers": 2}
    if options.get("tied"):
        options, model = {}, {**model, "tied_embeddings": True}
    sizes = {"data": 1, "z": 1, "y": 1, "x": 1, **grid}
    replicas = sizes["data"] * sizes["z"]
    ranks = replicas * sizes["y"] * sizes["x"]
    raw = {
        "model": model,
        "machine": {"extends": "dgx-h100", "nodes": 4096},
        "ranks": ranks,
        "grid": sizes,
        "batch": {"sequences": 2 * replicas, "micro_sequences": 1},
        **options,
    }
    job = load_job(raw)
    assert isinstance(job, FourDJob)
    return job


@pytest.mark.parametrize("name", full(CASES, *(set(CASES) - set(QUICK))))
def test_recorded_and_generated_schedules_are_equal(name) -> None:
    job = described(CASES[name])
    generated = generate(job)
    for rank in part(some_ranks(job), 1):
        found = difference(record(job, rank).schedule, generated)
        assert not found, f"rank {rank}: {found}"


def test_the_spread_is_wide_enough() -> None:
    jobs = [described(case) for case in CASES.values()]
    assert len(jobs) >= 20
    assert max(job.ranks for job in jobs) == 16_384
    known = presets()
    families = {name for name in known if not name.startswith("gpt-") and name != "gpt2"}
    models = {name for name, _, _ in CASES.values()}
    for family in ("llama-2", "llama-3", "mistral", "qwen2.5", "qwen3", "smollm2", "pythia"):
        assert any(name.startswith(family) for name in models & families)
