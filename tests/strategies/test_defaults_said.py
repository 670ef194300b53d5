"""What a job file says that is so anyway: no rule is against it."""

from __future__ import annotations

from typing import Any

import pytest

from twin.strategies import load_job

MODEL = {"layers": 4, "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 256}
JOBS: dict[str, dict[str, Any]] = {
    "four_d": {"strategy": "four_d"},
    "four_d, adapters": {"strategy": "four_d", "lora": {"rank": 2}},
    "fsdp": {"strategy": "fsdp"},
    "fsdp of DeepSpeed": {"strategy": "fsdp", "flavour": "deepspeed"},
    "megatron": {"strategy": "megatron"},
    "megatron of DeepSpeed": {"strategy": "megatron", "flavour": "deepspeed"},
    "megatron of PyTorch": {"strategy": "megatron", "flavour": "torch"},
    "ddp": {"strategy": "ddp"},
}


@pytest.mark.parametrize("grid", ["auto", {}], ids=["any grid", "one rank"])
@pytest.mark.parametrize("name", JOBS)
def test_defaults_may_be_said(name: str, grid: Any) -> None:
    batch = {"sequences": 4, "micro_sequences": 1}
    raw = {"model": MODEL, "machine": "dgx-a100", "ranks": 1, "grid": grid, "batch": batch, **JOBS[name]}
    job = load_job(raw)
    for recompute in {False, job.recompute}:
        plain = load_job({**raw, "recompute": recompute})
        assert load_job(plain.model_dump(mode="json", by_alias=True)) == plain
