"""A published training run → the job that says the same, or why no strategy here can say it.

What is expressed: tensor parallelism (y), data parallelism plain or with sharded optimizer states (data),
ZeRO-3 and FSDP (z), and their products. Assumed where a row does not say otherwise, as Megatron has them:
a GPT with learned positions and biases (SwiGLU: rotary, none of either), fused softmax where attention is not
flash, fused bias and dropout, dropout 0.1 of a GPT, one bucket of gradients reduced after the backward pass,
the input gradient's all-reduce not overlapped. DeepSpeed's ZeRO-3 gathers linear by linear, FSDP block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twin.description.load import names
from twin.validate import published_megatron as megatron_rows
from twin.validate import published_torch as torch_rows
from twin.validate.megatron import MEGATRON
from twin.validate.published_run import NOT_STATED, Row, Run

_A100_40GB = {"extends": "dgx-a100", "device": "a100-sxm4-40gb"}
MACHINES: dict[str, str | dict[str, Any]] = {
    "selene_a100_80g": "selene",
    "dgx_a100_2020": _A100_40GB,
    "dgx_a100_40g": _A100_40GB,
    "megascale_ampere": {"extends": "dgx-a100", "nodes": 2048},
    "titan_a100_64": "dgx-a100",
    "vtrain_a100_80g_512": "dgx-a100-4nic",
    "dgx_a100_2box_ib100": {
        "extends": "dgx-a100",
        "nic": {"devices": [[0], [1], [2], [3], [4], [5], [6], [7]], "bandwidth": "100 Gbit/s"},
    },
    "eos_dgx_h100": "eos",
    "dgx_h100": "dgx-h100",
    "h200_8x": "hgx-h200",
    "frontier_mi250x": "frontier",
    "perlmutter_a100": "perlmutter",
    "zb_a100_4x8_roce": "dgx-a100",
    "vista_gh200": "vista",
    "meta_h100_roce": "meta-24k",
    "titan_h100_96g": "hgx-h100-500w",
}
"""Machines of the published runs → machines here. A name of `fourfold machines` stands for itself."""
ASSUMED_MACHINES = {
    "dgx_a100_2020": "A100 of 40 GB, the only ones of that time",
    "titan_a100_64": "eight HDR NICs a node",
    "dgx_a100_2box_ib100": "a NIC of 100 Gbit/s for each device: through one a node the bytes of its 16-way tensor "
    "parallelism alone would take longer than was measured",
    "zb_a100_4x8_roce": "eight NICs of 200 Gbit/s a node; the rate is not stated",
}
MLPS = {"gelu": "gelu", "squared_relu": "gelu", "swiglu": "swiglu", "geglu": "swiglu"}
"""MLPs of published models → those whose kernels move the same bytes."""
VOCABULARY = 51200
"""Where a source has none: GPT-2's, padded as Megatron's papers do."""
VOCABULARIES = {"2401.10241": 32000}
"""Where a source has none but tells it: the zero-bubble paper's sizes (6.2B, 14.6B, 28.3B of given shapes, as rounded)
leave 25,500 to 33,400 words, and its repository's scripts take a SentencePiece model."""


def refusal(run: Run) -> str | None:
    """Say why a row is not one iteration of a job that a strategy here expresses."""
    return next((reason for test in REFUSALS if (reason := test(run))), None)


def _what(run: Run) -> str | None:
    row = run.row
    if row.get("kind") == "schedule_golden":
        return "kind schedule_golden: rates of bubbles, which the schedules' own tests hold"
    if "kind" in row:
        return f"kind {row['kind']}: not one training iteration"
    if "bound" in row:
        return "a bound, not a measurement"
    if any(not isinstance(run.shape(key), int) for key in ("layers", "hidden", "heads", "seq")):
        return "the model's sizes are not given"
    return None


def _degrees(run: Run) -> str | None:
    if missing := [key for key in ("gpus", "global_batch") if not isinstance(run.row.get(key), int)]:
        return f"{missing[0]} is not stated as a number"
    if missing := [key for key in ("tp", "pp", "cp") if run.degree(key) is None]:
        return f"{missing[0]} is not stated as a number"
    return None


def _cut(run: Run) -> str | None:
    row = run.row
    if run.is_megatron:
        return megatron_rows.refusal(run)
    if run.is_torch:
        return torch_rows.refusal(run)
    others = {
        "pipeline parallelism": int(row.get("pp", 1)) > 1,
        "context parallelism": int(row.get("cp", 1)) > 1,
        "sequence parallelism": megatron_rows.sequence_parallel(run),
    }
    return next((f"FSDP or ZeRO-3 with {other}" for other, there in others.items() if there), None)


def _product(run: Run) -> str | None:
    stated = run.row.get("dp", run.replicas)
    if run.replicas * run.parts != run.ranks or (isinstance(stated, int) and stated != run.replicas):
        return "the degrees do not multiply to the GPUs"
    if "strategy" in run.row and int(run.row.get("cp", 1)) > 1 and not run.is_torch:
        return f"strategy {run.row['strategy']}"
    return None


def _machine(run: Run) -> str | None:
    name = run.row.get("machine")
    return None if name in MACHINES or name in names() else f"machine {name} is not known here"


def _numbers(run: Run) -> str | None:
    if "rowwise" in run.says("precision"):
        return "fp8 with a scale for each row: no rate of its products is known"
    if "fp8" in run.says("precision"):
        return None if run.is_megatron or run.is_torch else "fp8"
    return None if run.says("precision")[:4] in {"fp16", "bf16", "fp32"} else "precision is not stated"


def _model(run: Run) -> str | None:
    model = run.model
    if (mlp := model.get("mlp", "gelu")) not in MLPS:
        return f"MLP of {mlp}"
    if "model_changes" in run.row and not run.is_megascale:
        return "changes of the model"
    return None


def _options(run: Run) -> str | None:
    row = run.row
    if not (run.is_megatron or run.is_torch) and not run.says("recompute").startswith(("full", "none")):
        said = run.says("recompute")
        return "recomputation is not stated" if said.startswith(NOT_STATED) else f"recomputation: {said}"
    if not run.is_torch and (row.get("compile") is True or row.get("async_tp") is True):
        return "compiled, or tensor parallelism overlapped"
    if run.flash is None:
        return "the attention kernel is not stated"
    return "micro_batch is not stated as a number" if run.micro_batch is None else None


def _sharding(run: Run) -> str | None:
    if run.row.get("zeropp") is True:
        return "ZeRO++"
    if run.replicas == 1 or run.stage in {"0", "1", "3", "fsdp", "overlapped"} or run.is_megascale:
        return None
    if run.stage == "2" and not run.is_megascale:
        one = run.row["global_batch"] == run.replicas * (run.micro_batch or 1)
        return None if one else "ZeRO-2 with several micro-steps"  # one reduce-scatter a step: ZeRO-1's
    return f"ZeRO stage {run.stage}"


REFUSALS: tuple[Callable[[Run], str | None], ...] = (
    _what,
    _degrees,
    _numbers,
    _cut,
    _product,
    _model,
    _machine,
    _options,
    _sharding,
)


def job_keys(run: Run) -> dict[str, Any]:
    """Make the keys of the job of a row that nothing refuses."""
    row, model = run.row, run.model
    return {
        "name": str(row.get("id", "published run")),
        "model": _model_keys(run),
        "machine": MACHINES.get(row["machine"], row["machine"]),
        "ranks": run.ranks,
        "batch": {"sequences": row["global_batch"], "micro_sequences": run.micro_batch},
        "precision": "bf16" if "fp8" in run.says("precision") else run.says("precision")[:4],
        "recompute": run.says("recompute").startswith("full"),
        "attention": run.attention,
        "dropout": MEGATRON["dropout"] if _learned(model) and not run.flash else 0.0,
        "fused_elementwise": run.stage != "fsdp",
        "kernel_tuning": False,
        "profiler": "profiler" in row,
        **_strategy_keys(run),
    }


def _strategy_keys(run: Run) -> dict[str, Any]:
    if run.is_torch:
        return torch_rows.keys(run)
    return megatron_rows.keys(run) if run.is_megatron else _sharded_keys(run)


def _model_keys(run: Run) -> dict[str, Any]:
    mlp = run.model.get("mlp", "gelu")
    ffn, gelu = run.shape("ffn"), mlp == "gelu"
    return {
        "layers": run.shape("layers_override", "layers"),
        "hidden": run.shape("hidden"),
        "heads": run.shape("heads"),
        **({"kv_heads": keys} if isinstance(keys := run.shape("kv_heads"), int) else {}),
        "sequence": run.shape("seq"),
        "vocabulary": _vocabulary(run),
        "activation": MLPS[mlp],
        "positions": "learned" if _learned(run.model) else "rotary",
        "biases": gelu,
        **({"residual": "parallel"} if run.parallel_block else {}),
        "norm": "layer" if MLPS[mlp] == "gelu" else "rms",
        **({"mlp_width": ffn} if ffn else {}),
    }


def _vocabulary(run: Run) -> int:
    stated = run.shape("vocab")
    if isinstance(stated, int):
        return stated
    source = str(run.row["source"])
    return next((words for paper, words in VOCABULARIES.items() if paper in source), VOCABULARY)


def _learned(model: Row) -> bool:
    return model.get("mlp", "gelu") == "gelu" and "rotary" not in str(model.get("note", ""))


def _sharded_keys(run: Run) -> dict[str, Any]:
    """Make the keys of a row whose weights are cut: strategy fsdp, or with tensor ranks the 4D algorithm's axes."""
    y, replicas = run.row.get("tp", 1), run.replicas
    shard = run.row.get("dp_shard")
    z = shard if isinstance(shard, int) and replicas % shard == 0 else replicas
    if y == 1:
        return {
            "strategy": "fsdp",
            "grid": {"data": replicas // z, "weights": z},
            "flavour": "deepspeed" if run.stage == "3" else "fsdp2",
            "separate_reduction_group": False,
            **({} if run.stage == "3" else {"loss_in_place": False}),
            "waits_for_gathers": run.stage == "3"
            and any(name in str(run.row["source"]) for name in megatron_rows.EARLY),
        }
    return {
        "grid": {"data": replicas // z, "z": z, "y": y},
        "gather_unit": "linear" if run.stage == "3" else "block",
        "overlap": MEGATRON["overlap"],
    }


def assumptions(run: Run) -> list[str]:
    """Name what a row leaves open and its job had to settle."""
    found = [f"{key}: {run.says(key)}" for key in ("precision", "recompute") if NOT_STATED in run.says(key)]
    if run.is_megatron and not isinstance(run.row.get("micro_batch"), int):
        found.append(f"{run.micro_batch} sequence{'' if run.micro_batch == 1 else 's'} at a time")
    if (mlp := run.model.get("mlp", "gelu")) != MLPS[mlp]:
        found.append(f"{mlp} moves what {MLPS[mlp]} does")
    if run.is_megascale:
        found.append("sliding-window attention as causal attention, LAMB as AdamW, communication beside products")
    if run.says("schedule").startswith("zb2p"):
        found.append("the automatic schedule of 2p activations as ZB-H2, which holds as many")
    if not isinstance(run.shape("vocab"), int):
        found.append(f"vocabulary {_vocabulary(run)}")
    if run.says("zero_stage") == NOT_STATED:
        found.append("ZeRO stage 0")
    if note := ASSUMED_MACHINES.get(run.row["machine"]):
        found.append(note)
    return found
