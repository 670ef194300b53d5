"""What a job may ask of the twin's FSDP and PyTorch's FSDP2 does not do."""

from __future__ import annotations

from runtime.sharded.refusals import of_others
from twin.description.problems import Problem
from twin.strategies.fsdp.job import FsdpJob


def refusals(job: FsdpJob) -> list[Problem]:
    """Return one problem for each such key, with what to write instead."""
    problems = []
    if job.flavour != "fsdp2":
        problems.append(Problem("flavour", "is for simulation; the runtime trains with PyTorch's fsdp2", job.flavour))
    if job.accumulate != "sharded":
        remedy = "is for simulation; the runtime reduces in every micro-step: set accumulate: sharded"
        problems.append(Problem("accumulate", remedy, job.accumulate))
    if job.recompute_stops_early:
        remedy = "is for simulation; a block runs again whole here: leave it out"
        problems.append(Problem("recompute_stops_early", remedy, True))
    problems += of_others(job.separate_reduction_group, job.loss_in_place)
    if job.grid == "auto":
        return problems
    grid = job.concrete_grid
    for axis in ("optimizer", "gradients"):
        if (size := grid.size(axis)) > 1:
            remedy = f"FSDP2 cuts weights, gradients and optimizer states alike; use grid {{weights: {job.ranks}}}"
            remedy += ", and for gathered weights that stay reshard_after_forward: false" if axis == "gradients" else ""
            problems.append(Problem(f"grid.{axis}", f"is for simulation: {remedy}", size))
    if grid.weights == 1 and grid.data > 1:
        remedy = f"cuts nothing; use grid {{weights: {job.ranks}}}, or strategy: ddp for plain replicas"
        problems.append(Problem("grid.weights", remedy, 1))
    return problems
