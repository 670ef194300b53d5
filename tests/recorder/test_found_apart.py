"""Jobs whose recorded steps once differed from what is generated: kinds that no other table of cases has together."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.recorder import record
from tests.tiers import full
from twin.schedule.difference import difference
from twin.strategies import generated, load_job

MODEL = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 128}
CPU, GPU = {"extends": "laptop", "nodes": 4}, "dgx-h100"
TORCH = {"strategy": "megatron", "flavour": "torch"}
CASES: dict[str, dict[str, Any]] = {
    "norms of heads beside layer norms, on a CPU": {"model": {**MODEL, "qk_norm": True}, "grid": {"z": 2}},
    "reductions of stages on a CPU": {**TORCH, "grid": {"data": 2, "pipeline": 2}},
    "reductions of replicas on a CPU": {**TORCH, "grid": {"data": 4}, "weight_shards": 2},
    "dropout in fused kernels": {
        **TORCH,
        "grid": {"tensor": 2},
        "machine": GPU,
        "precision": "bf16",
        "dropout": 0.1,
        "fused_elementwise": True,
    },
}


@pytest.mark.parametrize("name", full(CASES, "reductions of stages on a CPU"))
def test_what_is_recorded_is_what_is_generated(name: str) -> None:
    keys = CASES[name]
    ranks = 1
    for size in keys["grid"].values():
        ranks *= size
    common = {"model": MODEL, "machine": CPU, "ranks": ranks, "precision": "fp32"}
    job = load_job({**common, "batch": {"sequences": 16, "micro_sequences": 2}, **keys})
    for rank in (0, ranks - 1):
        assert not difference(record(job, rank).schedule, generated(job, rank))
