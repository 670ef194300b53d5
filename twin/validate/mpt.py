"""Iterations of MosaicML's MPT models under FSDP in a CSV file.

The table is that of github mosaicml/llm-foundry, scripts/train/benchmarking. What a row does not say is the
same for all of them:

* Fully sharded (the table's FULL_SHARD, no offload): the z axis alone, whose unit is a block, as FSDP wraps blocks.
* A GPT with learned positions, GELU of 4 × hidden, and biases: the parameters printed there are
  12·L·h² + V·h + s·h + L·13·h + 2·h exactly. Its embedding is the head too, which the twin has twice: nothing
  but the optimizer's time differs.
* Attention by the first version of FlashAttention in Triton: `attn_impl` is `triton` unless submit_benchmarks.py
  is told otherwise, and sweep.sh of no row does. On H100 its rate was not found; that of the first version's
  own kernel stands for it, which on A100 is within 8 %.
* No dropout, no fused bias and dropout, no choice among a product's operand modes.
* Mode DEFAULT of github mosaicml/composer gathers weights in the compute precision and sums gradients in fp32
  (FSDP's `param_dtype` and `reduce_dtype`); PURE does both in the compute precision.
* A100: the section with 1600 Gbit/s between nodes of eight, which is `dgx-a100`; H100: `dgx-h100`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twin.validate.iterations import Iteration

COLUMNS = (
    "device",
    "gpus",
    "layers",
    "hidden",
    "heads",
    "vocabulary",
    "sequence_length",
    "global_batch_sequences",
    "micro_batch_sequences",
    "recompute",
    "precision",
    "step_milliseconds",
)
DEVICES = {"a100_80gb": ("A100-80GB", "dgx-a100", "triton"), "h100_80gb": ("H100", "dgx-h100", "flash1")}
"""Device of a row → group, machine, attention kernel."""
PRECISIONS = {"amp_bf16": "bf16", "bf16": "bf16", "amp_fp16": "fp16", "fp16": "fp16"}

SCATTERS = {"DEFAULT": "fp32", "PURE": "compute"}
"""Mixed precision mode of a row → type in which gradients travel."""


def mpt_job(row: Mapping[str, Any]) -> dict[str, Any] | str:
    """Make the job of one row, or say why there is none."""
    if row["device"] not in DEVICES:
        return f"device {row['device']!r} is not known; those of this format are {', '.join(DEVICES)}"
    kind, _, mode = row["precision"].partition(" ")
    precision = PRECISIONS.get(kind)
    if precision is None:
        return f"precision {row['precision']!r}"
    if mode not in SCATTERS:
        return f"mixed precision mode {mode!r}; those of this format are {', '.join(SCATTERS)}"
    ranks = int(row["gpus"])
    return {
        "name": f"MPT on {ranks} {row['device']}",
        "model": {
            "layers": int(row["layers"]),
            "hidden": int(row["hidden"]),
            "heads": int(row["heads"]),
            "sequence": int(row["sequence_length"]),
            "vocabulary": int(row["vocabulary"]),
        },
        "machine": DEVICES[row["device"]][1],
        "ranks": ranks,
        "grid": {"z": ranks},
        "gather_unit": "block",
        "communication_precision": {"scatters": SCATTERS[mode]},
        "batch": {
            "sequences": int(row["global_batch_sequences"]),
            "micro_sequences": int(row["micro_batch_sequences"]),
        },
        "precision": precision,
        "attention": DEVICES[row["device"]][2],
        "recompute": row["recompute"],
        "kernel_tuning": False,
    }


def iteration(row: Mapping[str, Any]) -> Iteration:
    """Read one row, whose numbers are numbers by now."""
    group = DEVICES.get(row["device"], (row["device"],))[0]
    return Iteration(row, group, row["step_milliseconds"] / 1e3, mpt_job(row))
