"""Iterations of Megatron-DeepSpeed in a CSV file: tensor and data parallelism, fp16, full recomputation.

Tensor parallelism is the 4D algorithm with y = tensor_parallel. Fused softmax, fused bias and dropout,
and dropout 0.1 are Megatron's defaults. A column `machine` says where a row ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twin.validate.iterations import Iteration

COLUMNS = (
    "nodes",
    "gpus",
    "global_batch_sequences",
    "micro_batch_sequences",
    "layers",
    "hidden",
    "heads",
    "sequence_length",
    "data_parallel",
    "tensor_parallel",
    "iteration_milliseconds",
)
MACHINE = "dgx-a100-4nic"
"""Where the iterations ran that the format was made for."""
VOCABULARY, VOCABULARY_MULTIPLE = 50257, 128
"""GPT-2's vocabulary; Megatron pads it to a multiple of 128 × tensor_parallel."""
MEGATRON: dict[str, Any] = {
    "attention": "fused_softmax",
    "dropout": 0.1,
    "fused_elementwise": True,
    "overlap": {"all_reduce": False},
}
"""What Megatron does unless told otherwise."""


def iteration_job(row: Mapping[str, Any]) -> dict[str, Any]:
    """Make the job of one row."""

    def whole(key: str) -> int:
        return int(row[key])

    multiple = VOCABULARY_MULTIPLE * whole("tensor_parallel")
    vocabulary = -(-VOCABULARY // multiple) * multiple
    return {
        "name": "measured iteration",
        "model": {
            "layers": whole("layers"),
            "hidden": whole("hidden"),
            "heads": whole("heads"),
            "sequence": whole("sequence_length"),
            "vocabulary": vocabulary,
        },
        "machine": row.get("machine") or MACHINE,
        "ranks": whole("gpus"),
        "grid": {"data": whole("data_parallel"), "y": whole("tensor_parallel")},
        "batch": {"sequences": whole("global_batch_sequences"), "micro_sequences": whole("micro_batch_sequences")},
        "precision": "fp16",
        **MEGATRON,
    }


def iteration(row: Mapping[str, Any]) -> Iteration:
    """Read one row, whose numbers are numbers by now."""
    return Iteration(row, str(row["nodes"]), row["iteration_milliseconds"] / 1e3, iteration_job(row))
