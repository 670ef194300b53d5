"""The rules that a job must keep: which keys go together, and what its axes must divide."""

from __future__ import annotations

from math import gcd

from twin.description.attention import UNFUSED
from twin.description.grid import divisors, nearest
from twin.description.problems import Problem
from twin.strategies.megatron.flavours import check_flavour, check_rounds, check_shards
from twin.strategies.megatron.grid import Grid
from twin.strategies.megatron.job import SPLIT, MegatronJob
from twin.strategies.megatron.orders import group_of
from twin.strategies.megatron.orders import problems as order_problems


def check(job: MegatronJob) -> list[Problem]:
    """Return the rules of the strategy that a job breaks; those of the grid only where it is given."""
    problems = _check_options(job)
    return problems if job.grid == "auto" else [*problems, *check_axes(job, job.grid)]


def _check_options(job: MegatronJob) -> list[Problem]:
    problems = []
    if job.lora is not None:
        problems.append(Problem("lora", "megatron trains every weight; leave it out, or use strategy: four_d"))
    if job.document_mask:
        remedy = "is not known of megatron; leave it out, or use strategy: four_d"
        problems.append(Problem("document_mask", remedy, True))
    if job.tensor_overlap and not job.sequence_parallel:
        problems.append(Problem("tensor_overlap", "needs sequence_parallel: true", True))
    if job.overlap_parameters and not (job.distributed_optimizer and job.overlap_gradients):
        remedy = "needs distributed_optimizer: true and overlap_gradients: true"
        problems.append(Problem("overlap_parameters", remedy, True))
    if job.fp8_linears and job.machine.device.gemm.eight_bits is None:
        remedy = f"no rate of 8-bit products is known on {job.machine.device.name}; leave it out"
        problems.append(Problem("fp8_linears", remedy, True))
    if job.fp8_recipe is not None and not job.fp8_linears:
        problems.append(Problem("fp8_recipe", "needs fp8_linears: true", job.fp8_recipe))
    if job.loss_fusion is not None and job.loss_rows is not None:
        problems.append(Problem("loss_fusion", "is of all logits at once; leave it out, or loss_rows", job.loss_fusion))
    if job.overlap_messages is False and job.schedule in SPLIT:
        remedy = f"ranks of {job.schedule} would wait for each other for ever; leave it out"
        problems.append(Problem("overlap_messages", remedy, False))
    if job.context_traders is not None and job.context_exchange != "hierarchical":
        problems.append(Problem("context_traders", "needs context_exchange: hierarchical", job.context_traders))
    if not job.fused_residual and (job.flavour == "torch" or not job.fused_elementwise):
        remedy = "is about Megatron's fused kernels; needs flavour: megatron or deepspeed, and fused_elementwise: true"
        problems.append(Problem("fused_residual", remedy, False))
    if job.layers_in_steps and job.model.norm != "rms":
        remedy = "is about RMS norms; leave it out, or set model.norm: rms"
        problems.append(Problem("layers_in_steps", remedy, True))
    return problems + _check_recomputation(job) + check_flavour(job)


def _check_recomputation(job: MegatronJob) -> list[Problem]:
    """Return what says more finely what is computed again, where nothing of the kind is."""
    problems, layers = list[Problem](), job.recompute_layers
    if job.recompute_attention and job.recompute:
        remedy = "is a part of what recompute: true computes again; set recompute: false, or leave it out"
        problems.append(Problem("recompute_attention", remedy, True))
    if layers is not None and not job.recompute:
        problems.append(Problem("recompute_layers", "needs recompute: true", layers))
    elif layers is not None and layers > job.model.layers:
        remedy = f"the model has {job.model.layers} layers; use at most that many"
        problems.append(Problem("recompute_layers", remedy, layers))
    if job.recompute_keeps != "nothing" and not job.recompute:
        problems.append(Problem("recompute_keeps", "needs recompute: true", job.recompute_keeps))
    return problems


def check_axes(job: MegatronJob, grid: Grid) -> list[Problem]:
    """Return the sizes that the axes do not divide, and what their schedule does not allow."""
    model = job.model
    whole = gcd(model.heads, model.mlp_hidden)
    problems = []
    if whole % grid.tensor:
        remedy = f"must divide heads {model.heads} and MLP width {model.mlp_hidden}; nearest is "
        remedy += str(nearest(grid.tensor, divisors(whole)))
        problems.append(Problem("grid.tensor", remedy, grid.tensor))
    elif max(grid.tensor, model.key_value_heads) % min(grid.tensor, model.key_value_heads):
        remedy = f"must divide, or be a multiple of, the {model.key_value_heads} heads of keys"
        problems.append(Problem("grid.tensor", remedy, grid.tensor))
    if job.sequence_parallel and model.sequence % (grid.tensor * grid.context):
        remedy = f"the sequence of {model.sequence} tokens is not a multiple of tensor × context"
        problems.append(Problem("sequence_parallel", remedy, True))
    problems += check_context(job, grid)
    problems += check_shards(job, grid)
    problems += _check_stages(job, grid)
    return problems + _check_order(job, grid)


def _check_order(job: MegatronJob, grid: Grid) -> list[Problem]:
    """Return the rules of the schedule; those for the number of micro-batches only where that is known."""
    micro = job.batch.micro_sequences
    if micro == "auto" or job.batch.sequences % (grid.replicas * micro):
        micro_steps = 4 * grid.pipeline * (job.micro_group or 1)  # a number that breaks none
    else:
        micro_steps = job.batch.sequences // (grid.replicas * micro)
    found = check_rounds(job, grid, micro_steps)
    if not found:
        group = group_of(grid.pipeline, micro_steps) if job.has_rounds else job.micro_group
        found = order_problems(job.order, grid.pipeline, micro_steps, job.chunks, group)
    problems = [
        Problem(key, remedy, micro if key == "batch.micro_sequences" else value)
        for key, remedy, value in found
        if micro != "auto" or key not in {"batch.micro_sequences", "micro_group"}
    ]
    if job.schedule == "interleaved" and job.overlap_messages is False and not found and micro != "auto":
        if grid.pipeline == 2:
            remedy = "with two pipeline ranks interleaving must send beside compute (Megatron's rule); leave it out"
            problems.append(Problem("overlap_messages", remedy, False))
        elif micro_steps <= grid.pipeline:
            remedy = f"{micro_steps} micro-batches for {grid.pipeline} pipeline ranks would wait for each other for "
            remedy += "ever without overlap_messages; use smaller micro-batches, or leave overlap_messages out"
            problems.append(Problem("batch.micro_sequences", remedy, micro))
    return problems


def check_context(job: MegatronJob, grid: Grid) -> list[Problem]:
    """Return what context ranks cannot share."""
    model, context = job.model, grid.context
    if context == 1:
        return []
    problems = []
    parts = "context" if job.context_exchange == "balanced" else "2 × context"
    if model.sequence % (context if job.context_exchange == "balanced" else 2 * context):
        remedy = f"cuts the sequence of {model.sequence} tokens into {parts} parts, which must be equal"
        problems.append(Problem("grid.context", remedy, context))
    if job.attention in UNFUSED:
        problems.append(Problem("attention", "context parallelism needs a flash kernel; use flash", job.attention))
    traders = context if job.context_exchange == "all_to_all" else job.context_traders or 1
    if context % traders:
        remedy = f"must divide the {context} context ranks"
        return [*problems, Problem("context_traders", remedy, traders)]
    keys_of_rank = max(1, model.key_value_heads // grid.tensor)
    shared = max(keys_of_rank, traders) % min(keys_of_rank, traders)
    if model.heads % (grid.tensor * traders) or shared:
        remedy = f"trades {model.heads} heads and {model.key_value_heads} of keys, of which tensor × {traders} ranks "
        remedy += "need equal numbers"
        key = "grid.context" if job.context_exchange == "all_to_all" else "context_traders"
        problems.append(Problem(key, remedy, traders))
    return problems


def _check_stages(job: MegatronJob, grid: Grid) -> list[Problem]:
    stages, layers, given = job.stages, job.model.layers, job.stage_layers
    if given is None:
        if layers % stages == 0:
            return []
        remedy = f"{layers} layers do not divide into {stages} equal stages; give stage_layers, such as "
        return [Problem("grid.pipeline", remedy + str(evenly(layers, stages)), grid.pipeline)]
    if len(given) != stages or sum(given) != layers or min(given) < 0:
        remedy = f"must be {stages} numbers of layers that sum to {layers}, such as {evenly(layers, stages)}"
        return [Problem("stage_layers", remedy, list(given))]
    return []


def evenly(layers: int, stages: int) -> list[int]:
    """Divide layers over stages, the last ones having fewer by one at most.

    >>> evenly(10, 4)
    [3, 3, 2, 2]
    """
    return [layers // stages + (i < layers % stages) for i in range(stages)]
