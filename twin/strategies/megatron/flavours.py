"""What each flavour has and has not: rules about keys that need no grid, or only whether an axis is cut."""

from __future__ import annotations

from twin.description.problems import Problem
from twin.strategies.megatron.grid import Grid
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.orders import rounds
from twin.strategies.megatron.orders.rules import MICRO, Broken

OF_OTHERS = {
    "deepspeed": ("sequence_parallel", "overlap_gradients", "overlap_parameters", "overlap_messages", "loss_fusion"),
    "torch": ("distributed_optimizer", "overlap_gradients", "overlap_parameters", "split_messages", "loss_fusion"),
}
"""Switches that an implementation has not."""
ONLY_TORCH = ("weight_shards", "reduces_before_sending")
ONLY_TORCH_EITHER = ("reshard_after_forward", "separate_reduction_group", "loss_in_place")
"""Switches that say something off, too."""


def check_flavour(job: MegatronJob) -> list[Problem]:
    """Return the keys of other flavours that a job has."""
    if job.flavour == "megatron":
        return _only_torch(job)
    whose = {"deepspeed": "DeepSpeed's pipeline has not", "torch": "PyTorch's fully_shard has not"}[job.flavour]
    given: list[tuple[str, object]] = [(key, getattr(job, key)) for key in OF_OTHERS[job.flavour] if getattr(job, key)]
    if job.flavour == "deepspeed" and job.schedule != "1f1b":
        given.append(("schedule", job.schedule))
    problems = [Problem(key, f"{whose}; leave it out, or use flavour: megatron", value) for key, value in given]
    if job.flavour == "deepspeed":
        return problems + _only_torch(job)
    if job.loss_in_place is False and job.loss_rows is not None:
        problems.append(Problem("loss_in_place", "is of all logits at once; leave it out, or loss_rows", False))
    if not job.fused_accumulation:
        remedy = "is about Megatron's products; PyTorch's never add to sums: leave it out, or use flavour: megatron"
        problems.append(Problem("fused_accumulation", remedy, False))
    if job.overlap_messages is not None:
        remedy = "schedules of torch.distributed.pipelining say themselves what waits for messages; leave it out, or "
        problems.append(Problem("overlap_messages", remedy + "use flavour: megatron", job.overlap_messages))
    if job.schedule in ("zb_h2", "dualpipe"):
        remedy = "is not among the schedules of torch.distributed.pipelining; use zb_h1, zb_v or dualpipe_v"
        problems.append(Problem("schedule", remedy, job.schedule))
    return problems


def _only_torch(job: MegatronJob) -> list[Problem]:
    remedy = "is of PyTorch's fully_shard; leave it out, or set flavour: torch"
    given = [key for key in ONLY_TORCH if getattr(job, key)]
    given += [key for key in ONLY_TORCH_EITHER if getattr(job, key) is not None]
    return [Problem(key, remedy, getattr(job, key)) for key in given]


def check_rounds(job: MegatronJob, grid: Grid, micro_steps: int) -> list[Broken]:
    """Return what PyTorch's schedules refuse besides the rules that all flavours have."""
    if job.flavour != "torch" or grid.pipeline == 1:
        return []
    number = rounds(grid.pipeline, micro_steps)
    if job.schedule in ("interleaved", "zb_h1") and micro_steps % number:
        remedy = f"PyTorch's {job.schedule} runs the {micro_steps} micro-batches of a step in {number} rounds of as "
        return [(MICRO, f"{remedy}many; use a multiple of {grid.pipeline} of them", None)]
    if job.schedule == "interleaved" and job.micro_group not in (None, micro_steps // number):
        remedy = f"PyTorch makes {number} groups of {micro_steps // number}; leave it out, or use flavour: megatron"
        return [("micro_group", remedy, job.micro_group)]
    if job.schedule == "1f1b" and micro_steps < grid.pipeline:
        remedy = f"PyTorch's 1f1b needs a micro-batch per pipeline rank, {grid.pipeline}, but a step has {micro_steps}"
        return [(MICRO, f"{remedy}; use smaller micro-batches", None)]
    return []


def check_shards(job: MegatronJob, grid: Grid) -> list[Problem]:
    """Return what cannot be of weights that are cut over data and context ranks."""
    if job.flavour != "torch":
        return []
    problems, sharers = [], grid.data * grid.context
    if job.weight_shards is not None and (sharers % job.weight_shards or (job.weight_shards == 1) != (sharers == 1)):
        remedy = f"must divide the {sharers} ranks of data × context, and be more than one of several"
        problems.append(Problem("weight_shards", remedy, job.weight_shards))
    if job.reshard_after_forward and grid.pipeline > 1 and job.schedule in ("zb_h1", "zb_v", "dualpipe_v"):
        remedy = f"weights of {job.schedule} are needed twice in a backward pass; leave it out, or set it to false"
        problems.append(Problem("reshard_after_forward", remedy, True))
    if job.model.tied_embeddings and grid.pipeline > 1:
        remedy = "stages of torch.distributed.pipelining share no weights; set model.tied_embeddings: false"
        problems.append(Problem("model.tied_embeddings", remedy, True))
    return problems
