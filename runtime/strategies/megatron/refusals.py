"""What a job may ask of the twin's Megatron and PyTorch's own pieces do not do."""

from __future__ import annotations

from runtime.sharded.refusals import of_others
from twin.description.problems import Problem
from twin.strategies.megatron.grid import Grid
from twin.strategies.megatron.job import MegatronJob

FOR_SIMULATION: dict[str, tuple[object, str]] = {
    "rank_order": ("pipeline_outermost", "torchtitan's mesh has pipeline outermost"),
    "recompute_keeps": ("nothing", "blocks are computed again whole"),
    "recompute_attention": (False, "blocks are computed again whole, or not at all"),
    "recompute_layers": (None, "all blocks are computed again, or none"),
    "fused_residual": (True, "what is fused follows from fused_elementwise"),
    "layers_in_steps": (False, "norms and rotary positions are a kernel each"),
    "fp8_linears": (False, "products are in compute precision"),
    "tensor_overlap": (False, "gathers and scatters come before and behind products"),
    "reduces_before_sending": (False, "PyTorch sends first"),
    "overlap_messages": (None, "when messages are waited for is the schedule's business"),
    "micro_group": (None, "PyTorch chooses the largest groups of equal size"),
}
"""Keys of which one value trains, and why."""


def refusals(job: MegatronJob) -> list[Problem]:
    """Return one problem for each such key, with what to write instead."""
    problems = []
    for key, (trained, why) in FOR_SIMULATION.items():
        if (value := getattr(job, key)) != trained:
            problems.append(Problem(key, f"is for simulation: {why}; leave it out", value))
    problems += of_others(job.separate_reduction_group, job.loss_in_place)
    return problems if job.grid == "auto" else problems + _of_axes(job, job.concrete_grid)


def _of_axes(job: MegatronJob, grid: Grid) -> list[Problem]:
    problems = []
    if grid.tensor > 1 and job.model.key_value_heads % grid.tensor:
        remedy = f"must divide the {job.model.key_value_heads} heads of keys, which ranks do not share in training"
        problems.append(Problem("grid.tensor", remedy, grid.tensor))
    if grid.tensor > 1 and job.model.residual == "parallel":
        remedy = "blocks whose MLP stands beside attention are simulated only; use grid.tensor: 1, or strategy: four_d"
        problems.append(Problem("grid.tensor", remedy, grid.tensor))
    if job.model.tied_embeddings and job.weight_parts > 1:
        remedy = "a table that is head too is not divided here; use grid.data and grid.context: 1, or strategy: fsdp"
        problems.append(Problem("model.tied_embeddings", remedy, True))
    if grid.pipeline > 1 and job.reshards:
        problems.append(Problem("reshard_after_forward", "weights of a pipeline's stages stay; leave it out", True))
    if grid.context > 1 and job.context_exchange in ("hierarchical", "balanced"):
        remedy = "is for simulation; use ring, all_gather or all_to_all"
        problems.append(Problem("context_exchange", remedy, job.context_exchange))
    traded = grid.context > 1 and job.context_exchange == "all_to_all"
    if grid.context > 1 and not traded and job.attention in ("cudnn", "cutlass"):
        remedy = "meets keys of other ranks by FlashAttention's kernel in training; use flash or flash2"
        problems.append(Problem("attention", remedy, job.attention))
    if traded and job.model.key_value_heads % (grid.tensor * grid.context):
        remedy = f"tensor × context ranks must divide the {job.model.key_value_heads} heads of keys, of which ranks "
        remedy += "have no copies in training; use ring or all_gather"
        problems.append(Problem("context_exchange", remedy, job.context_exchange))
    if grid.context > 1 and job.weight_parts % grid.context:
        remedy = f"must be a multiple of the {grid.context} context ranks, which divide weights among them"
        problems.append(Problem("weight_shards", remedy, job.weight_parts))
    return problems
