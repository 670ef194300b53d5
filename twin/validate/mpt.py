"""Iterations of MosaicML's MPT models under FSDP in a CSV file.

The table is that of github mosaicml/llm-foundry, scripts/train/benchmarking. What a row does not say is the
same for all of them:

* Fully sharded (the table's FULL_SHARD, no offload): the z axis of the 4D algorithm alone, whose unit is a block, as
  FSDP wraps blocks; or, asked for, strategy fsdp with the flavour that these programs ran, PyTorch's
  FullyShardedDataParallel. The second hides its gathers better than the measured programs did.
* A GPT with learned positions, GELU of 4 × hidden, and biases: the parameters printed there are
  12·L·h² + V·h + s·h + L·13·h + 2·h exactly. Its embedding is the head too, which the twin has twice: nothing
  but the optimizer's time differs.
* Attention by the first version of FlashAttention in Triton: `attn_impl` is `triton` unless submit_benchmarks.py
  is told otherwise, and sweep.sh of no row does. On H100 its rate was not found; that of the first version's
  own kernel stands for it, which on A100 is within 8 %.
* No dropout, no fused bias and dropout, no choice among a product's operand modes.
* Weights are gathered in the compute precision. In which type gradients are summed depends on the release of github
  mosaicml/composer: its mode DEFAULT was documented to sum in fp32 from March 2023 (pull request 2047), but did so
  only from October 2023 on (2628). The README's rows of A100 with 80 GB and of H100 ran in an image of 27 August 2023
  (PyTorch 2.1 nightly: the column `Image` of h100new.csv beside it), before that; the later table, of large scale, has
  no date and is taken to be newer. PURE sums in the compute precision, and so is a row read that has no mode.
* A100: the sections with 1600 Gbit/s between nodes of eight, which is `dgx-a100`; H100: `dgx-h100`.
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
DEVICES: Mapping[str, tuple[str, str | dict[str, Any], str]] = {
    "a100_80gb": ("A100-80GB", "dgx-a100", "triton"),
    "a100_40gb": ("A100-40GB", {"extends": "dgx-a100", "device": "a100-sxm4-40gb"}, "triton"),
    "h100_80gb": ("H100", "dgx-h100", "flash1"),
}
"""Device of a row → group, machine, attention kernel."""
PRECISIONS = {"amp_bf16": "bf16", "bf16": "bf16", "amp_fp16": "fp16", "fp16": "fp16"}

MODES = ("DEFAULT", "PURE", "")
SUMS_IN_FP32 = "Large Scale"
"""In the section of rows that were made with a release whose mode DEFAULT sums in fp32."""


READINGS = ("four_d", "fsdp")
"""Strategies that rows are read as."""


def mpt_job(row: Mapping[str, Any], reading: str = "four_d") -> dict[str, Any] | str:
    """Make the job of one row, or say why there is none."""
    if row["device"] not in DEVICES:
        return f"device {row['device']!r} is not known; those of this format are {', '.join(DEVICES)}"
    kind, _, mode = row["precision"].partition(" ")
    precision = PRECISIONS.get(kind)
    if precision is None:
        return f"precision {row['precision']!r}"
    if mode not in MODES:
        return f"mixed precision mode {mode!r}; those of this format are {', '.join(filter(None, MODES))}"
    wide = mode == "DEFAULT" and SUMS_IN_FP32 in row.get("section", "")
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
        **_sharded(ranks, reading, "fp32" if wide else "compute"),
        "batch": {
            "sequences": int(row["global_batch_sequences"]),
            "micro_sequences": int(row["micro_batch_sequences"]),
        },
        "precision": precision,
        "attention": DEVICES[row["device"]][2],
        "recompute": row["recompute"],
        "kernel_tuning": False,
    }


def _sharded(ranks: int, reading: str, sums: str) -> dict[str, Any]:
    """Make the keys that say how a model is sharded, and in which type its gradients are summed."""
    if reading == "fsdp":
        return {"strategy": "fsdp", "flavour": "fsdp1", "grid": {"weights": ranks}, "reduce_precision": sums}
    return {"grid": {"z": ranks}, "gather_unit": "block", "communication_precision": {"scatters": sums}}


def iteration(row: Mapping[str, Any], reading: str = "four_d") -> Iteration:
    """Read one row, whose numbers are numbers by now."""
    group = DEVICES.get(row["device"], (row["device"],))[0]
    return Iteration(row, group, row["step_milliseconds"] / 1e3, mpt_job(row, reading))
