"""The keys of a published run of torchtitan, or of DistFlashAttn: FSDP below tensor, pipeline and context parallelism.

Settled where a source says nothing, by torchtitan's defaults: gradients are summed in fp32, a pipeline's micro-batch is
one sequence, the embedding and the head take a layer's place each, every second layer is computed again with
`selective` of layers, and of selective recomputation per operation attention, every second product and the sums over
tensor ranks are kept; pipelines ran on PyTorch of 2024, which reduced before it sent. Compiled, element-wise kernels
are fused; else layers are those of Llama's published code, chains of eager operations. DistFlashAttn's paper changes
Hugging Face's Llama, cuts weights by FSDP, and keeps the output of attention; Ulysses beside it is taken to do the
same but for that output.
"""

from __future__ import annotations

from typing import Any

from twin.validate import published_megatron as megatron
from twin.validate.published_run import NOT_STATED, Run

RECOMPUTED: dict[str, dict[str, Any]] = {
    "full": {"recompute": True},
    "none": {"recompute": False},
    "selective per-op": {"recompute": True, "recompute_keeps": "half_products"},
    "selective layer": {"recompute": True},
    "attention output kept": {"recompute": True, "recompute_keeps": "attention"},
}


def _recomputed(run: Run) -> str | None:
    said = run.says("recompute")
    if run.is_sequence_parallel_alone and said == NOT_STATED:
        said = "full" if "layer-boundary" in run.says("strategy") else "attention output kept"
    return next((word for word in RECOMPUTED if said.startswith(word)), None)


def refusal(run: Run) -> str | None:
    """Say why a row is no job of this flavour."""
    if _recomputed(run) is None:
        return f"recomputation: {run.says('recompute')}"
    if megatron.schedule(run) is None:
        return f"schedule {run.says('schedule')}"
    if run.row.get("dp_shard", run.replicas) != run.replicas:
        return f"weights cut over {run.row['dp_shard']} of {run.replicas} replicas"
    heads, context = run.shape("heads"), int(run.row.get("cp", 1))
    if "ulysses" in run.says("strategy") and heads % context:
        return f"{heads} heads traded over {context} context ranks"
    return None


def keys(run: Run) -> dict[str, Any]:
    """Make the strategy's keys of a row that nothing refuses."""
    row = run.row
    pipeline, tensor, context = (int(row.get(key, 1)) for key in ("pp", "tp", "cp"))
    split = tensor > 1 and megatron.sequence_parallel(run)
    kept = _recomputed(run)
    assert kept is not None
    found: dict[str, Any] = {
        "strategy": "megatron",
        "flavour": "torch",
        "grid": {"pipeline": pipeline, "data": run.replicas, "context": context, "tensor": tensor},
        "sequence_parallel": split,
        "tensor_overlap": split and row.get("async_tp") is True,
        "fp8_linears": "fp8" in run.says("precision"),
        "fused_elementwise": row.get("compile") is True,
        "layers_in_steps": row.get("compile") is not True,
        "separate_reduction_group": False,
        "loss_in_place": False,
        **RECOMPUTED[kept],
    }
    if run.is_sequence_parallel_alone:
        found["context_exchange"] = "all_to_all" if "ulysses" in run.says("strategy") else "balanced"
    if kept == "selective layer":
        found["recompute_layers"] = run.shape("layers_override", "layers") // 2
    if pipeline > 1:
        chunks = megatron.chunks(run)
        found |= {"schedule": megatron.schedule(run), "chunks": chunks, "reduces_before_sending": True}
        found |= megatron.stages(run, pipeline * chunks)
    return found
