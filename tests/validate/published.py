"""Rows of published runs, and the jobs that they become: shared by their tests."""

from __future__ import annotations

from typing import Any

from twin.strategies import load_job
from twin.validate.training_runs import training_run

GPT = {"layers": 48, "hidden": 6144, "heads": 64, "ffn": 24576, "mlp": "gelu", "seq": 2048, "vocab": 51200}
LLAMA = {"layers": 40, "hidden": 5120, "heads": 40, "ffn": 13824, "mlp": "swiglu", "vocab": 32000}
TENSOR: dict[str, Any] = {
    "id": "tensor",
    "source": "a paper, Table 5",
    "machine": "selene_a100_80g",
    "gpus": 16,
    "tp": 8,
    "pp": 1,
    "dp": 2,
    "micro_batch": 4,
    "global_batch": 16,
    "recompute": "full",
    "sequence_parallel": False,
    "zero_stage": 0,
    "precision": "fp16",
    "flash_attention": False,
    "iteration_s": 1.42,
}
FSDP: dict[str, Any] = {
    "id": "fsdp",
    "source": "notes of a repository",
    "machine": "titan_a100_64",
    "gpus": 64,
    "dp_shard": 64,
    "tp": 1,
    "local_batch": 2,
    "global_batch": 128,
    "seq": 4096,
    "recompute": "none",
    "precision": "bf16",
    "zero_stage": "FSDP2 per-block",
    "flash_attention": True,
    "tokens_per_s_per_gpu": 2162,
}


def job_of(row: dict[str, Any], model: dict[str, Any]) -> Any:
    keys = training_run(row, model).job
    assert isinstance(keys, dict), keys
    return load_job(keys)
