"""Iterations of Megatron-DeepSpeed with the optimizer on the host, in a CSV file: ZeRO-3, bf16, recomputation.

A row says how many sub-groups are updated on the device (`interleaved`, `stride`), whether gradients leave beside the
backward pass (`async_gradients`), and which share of states is offloaded (`offload_ratio`). What its `folder` was run
on, and the widths that it leaves out, are those of the scripts of github DataStates/artifacts and of the logs: grouped
keys and values, the MLP by `MLP_WIDTHS`, the fused softmax of Megatron, GPT-2's vocabulary padded to 50,304.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twin.description.problems import fail
from twin.validate.iterations import Iteration
from twin.validate.megatron import VOCABULARY, VOCABULARY_MULTIPLE

COLUMNS = (
    *("folder", "tensor", "data", "layers", "hidden", "heads", "sequence", "global_batch", "micro_batch"),
    *("offload_ratio", "subgroup", "iteration_ms"),
)
MLP_WIDTHS = {
    (32, 4096, 32): 11008,
    (72, 3072, 32): 11008,
    (50, 4096, 32): 12400,
    (40, 5120, 40): 13824,
    (40, 5120, 64): 20480,
    (64, 4096, 256): 16384,
    (60, 6656, 52): 17920,
}
"""By layers, hidden size and heads, where a command line gives a width; elsewhere it is Megatron's own."""
TCP = "nccl-tcp"
"""What ranks on several nodes of Polaris talk by: the logs' PyTorch is its own wheel (2.0.1+cu118), and no network
plugin is loaded where none is asked for, so that NCCL falls back to TCP (github argonne-lcf/alcf-nccl-tests, setting
1). Inside a node that makes no difference."""
DEVICES = 4
"""Of a node of either machine."""
KV_HEADS, KV_HEADS_OF_256 = 4, 16
"""Of keys and values; the second of models with 256 heads, as their logs say."""
OTHER_NODE = "twinflow"
"""In the name of a folder of the node of H100; all others were run on Polaris."""
CAREFUL = ("gaps-a100", OTHER_NODE)
"""In the names of folders whose command lines, as logged, bind ranks to cores and give the MLP's width; no other does
(two logs of each folder were read)."""
COLLECTION_SECONDS = 0.070
"""A collection of Python's garbage in a process that has imported PyTorch 2.13: 166,000 objects, median of seven on one
core of an EPYC (measured 2026-11-24). The runs' `memory_breakdown: true` has DeepSpeed collect before and after each
forward and backward pass and each update (`see_memory_usage`)."""


def offloaded_iteration(row: Mapping[str, Any]) -> Iteration:
    """Read one row, whose numbers are numbers by now; raises DescriptionError for a switch that is none."""
    folder, tensor = str(row["folder"]), int(row["tensor"])
    machine = "4xh100" if OTHER_NODE in folder else "polaris"
    group = f"{machine}, {_words(row) if tensor == 1 else 'tensor ranks'}"
    seconds = row["iteration_ms"] / 1e3
    layers, hidden, heads = int(row["layers"]), int(row["hidden"]), int(row["heads"])
    vocabulary = -(-VOCABULARY // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    replicas = int(row["data"])
    ranks = replicas * tensor
    job = {
        "name": "measured iteration",
        "strategy": "fsdp",
        "flavour": "deepspeed",
        "model": {
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "kv_heads": KV_HEADS_OF_256 if heads == 256 else KV_HEADS,
            "sequence": int(row["sequence"]),
            "vocabulary": vocabulary,
            "mlp_width": _mlp_width(folder, layers, hidden, heads),
            "activation": "swiglu",
            "norm": "rms",
            "positions": "rotary",
            "biases": False,
        },
        "machine": {"extends": machine, "library": TCP} if machine == "polaris" and ranks > DEVICES else machine,
        "ranks": ranks,
        "grid": {"weights": replicas, "tensor": tensor},
        "batch": {"sequences": int(row["global_batch"]), "micro_sequences": int(row["micro_batch"])},
        "precision": "bf16",
        "attention": "fused_softmax",
        "offload": {"optimizer": {**_optimizer(row), "bound_cores": _careful(folder)}},
    }
    collections = 4 * job_micro_steps(row) + 2
    notes = {"beside_milliseconds": 1e3 * COLLECTION_SECONDS * collections}
    return Iteration(row, group, seconds, job, notes, COLLECTION_SECONDS * collections)


def _careful(folder: str) -> bool:
    """Tell whether a folder's command lines bind ranks to cores and give the MLP's width."""
    return any(each in folder for each in CAREFUL)


def _mlp_width(folder: str, layers: int, hidden: int, heads: int) -> int:
    """Return the width that the folder's command lines give, or Megatron's own of a gated MLP, in blocks of 64."""
    own = 8 * hidden // 3 // 64 * 64
    return MLP_WIDTHS.get((layers, hidden, heads), own) if _careful(folder) else own


def job_micro_steps(row: Mapping[str, Any]) -> int:
    """Return the micro-steps of a row's iteration."""
    return max(1, int(row["global_batch"]) // (int(row["data"]) * int(row["micro_batch"])))


def _optimizer(row: Mapping[str, Any]) -> dict[str, Any]:
    interleaved = _switch(row, "interleaved")
    return {
        "ratio": float(row["offload_ratio"]),
        "sub_group_elements": int(row["subgroup"]),
        "overlapped_gradients": _switch(row, "async_gradients") == 1,
        **({"stride": _switch(row, "stride")} if interleaved else {}),
    }


def _words(row: Mapping[str, Any]) -> str:
    if _switch(row, "interleaved"):
        return "interleaved"
    return "gradients beside backward" if _switch(row, "async_gradients") else "blocking gradients"


def _switch(row: Mapping[str, Any], key: str) -> int:
    text = str(row.get(key, "0")).strip() or "0"
    if not text.isdecimal():
        raise fail(key, "must be a whole number, 0 where it is off", text)
    return int(text)
