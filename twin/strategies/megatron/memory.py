"""Memory of the ranks of one stage, by category.

Of a parameter: 2 bytes of the weight, its gradient's sum (4 in fp32), and 12 of optimizer states, which a distributed
optimizer divides: 6 + 12/data. DeepSpeed keeps 16-bit gradients beside the fp32 sums: 8 + 12/data
(arXiv 2205.05198 for activations; the logs of LUMI for DeepSpeed's bytes).
"""

from __future__ import annotations

from twin.description.attention import UNFUSED
from twin.strategies.activations import block_activation_bytes
from twin.strategies.megatron.bodies import recomputed
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.local import Local
from twin.strategies.megatron.orders import Action
from twin.strategies.megatron.place import Pipeline, Stage
from twin.strategies.megatron.reduction import Parameters
from twin.strategies.sizes import FP32_BYTES, optimizer_bytes


def memory_by_category(job: MegatronJob, rank: int) -> dict[str, float]:
    """Count the peak bytes of a rank of a stage."""
    local, pipeline = Local(job), Pipeline(job)
    stages, parameters = pipeline.stages(rank), Parameters(job, local)
    total, e = sum(parameters.stage(stage) for stage in stages), job.element_bytes
    parts = parameters.sharers if job.distributed_optimizer else 1
    gradient = job.main_gradient_bytes + (e if job.flavour == "deepspeed" and e < FP32_BYTES else 0)
    return {
        "weights": float(e * total),
        "gradients": float(gradient * total),
        "optimizer": float(optimizer_bytes(e) * -(-total // parts)),
        "activations": activation_bytes(job, local, pipeline, rank),
        "messages": 2 * local.message_bytes if pipeline.ranks > 1 else 0.0,
    }


def activation_bytes(job: MegatronJob, local: Local, pipeline: Pipeline, rank: int) -> float:
    """What forward passes have left for backward passes to come, at the worst moment, and what one works with."""
    stages = pipeline.stages(rank)
    kept = [_kept(job, local, stage) for stage in stages]
    held = _most(pipeline.actions(rank), kept)
    block, m = _block(job, local), local.tokens
    gradients = job.element_bytes * (2 * local.residual_elements + m * (local.mlp_up + local.mlp))
    working = (block if any(recomputed(job, stage) for stage in stages) else 0.0) + gradients
    logits = 0.0
    if any(stage.last for stage in stages):
        logits = float(m * local.vocabulary * (2 * job.element_bytes + 2 * FP32_BYTES))
    return held + max(working, logits)


def _most(actions: tuple[Action, ...], kept: list[float]) -> float:
    """Follow a rank through its actions: a forward pass adds, the end of a backward pass takes away."""
    held = most = 0.0
    for action in actions:
        if action.kind == "F":
            held += kept[action.chunk]
            most = max(most, held)
        elif action.kind in ("B", "W"):
            held -= kept[action.chunk]
    return most


def _kept(job: MegatronJob, local: Local, stage: Stage) -> float:
    """Bytes that a micro-batch's forward pass leaves on a stage."""
    again = len(recomputed(job, stage))
    residual = float(job.element_bytes * local.residual_elements)
    ends = float(local.residual_elements) if stage.first and job.dropout else 0.0
    if stage.last:  # inputs of the last norm and of the head
        ends += 2 * residual
    return again * residual + (len(stage.layers) - again) * _block(job, local, whole=False) + ends


def _block(job: MegatronJob, local: Local, *, whole: bool = True) -> float:
    """What one block's backward pass needs; without scores that are computed again, unless `whole`."""
    form = "flash" if job.recomputes_scores and not whole else job.attention
    block = block_activation_bytes(
        job.model_copy(update={"attention": form}),
        tokens=local.tokens,
        sequences=local.sequences,
        heads=local.heads,
        kv_heads=local.kv_heads,
        residual_width=job.model.hidden // (local.grid.tensor if job.sequence_parallel else 1),
        mlp_up_width=local.mlp_up,
        mlp_width=local.mlp,
    )
    if job.recomputes_scores and not whole and job.attention in UNFUSED:
        block -= FP32_BYTES * local.sequences * local.heads * job.model.sequence
    return block + (2.0 * local.residual_elements if job.dropout else 0.0)
