"""Training with PyTorch's own parallelism on one rank, to be compared with the serial model."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch

from runtime.parallel.mesh import Mesh
from runtime.step.trainee import MicroBatch
from runtime.strategies.megatron.assembly import trainee_in
from runtime.strategies.megatron.context import MegatronContext
from runtime.strategies.megatron.messages import Messages
from runtime.strategies.megatron.ranks import PIPELINE, Ranks
from runtime.strategies.megatron.trainee import MegatronTrainee
from runtime.train.diagnosis import find_non_finite
from tests.runtime import parity
from tests.runtime.fsdp_tasks import train
from twin.description.train import Adam
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid
from twin.strategies.megatron.groups import GATHER, REPLICATE, SCATTER
from twin.strategies.megatron.job import MegatronJob

GROUPS = {
    PIPELINE: "data",
    REPLICATE: "z_gather",
    GATHER: "y",
    SCATTER: "y",
    "shard": "y",
    "context": "y",
    "tensor": "x",
}
"""Communicators, and those of the 4D grid `as_four_d` that have the same ranks."""
MODEL = {**parity.MODEL, "layers": 4}


def describe(grid: dict[str, int], micro_steps: int = 4, **options: Any) -> MegatronJob:
    """The job of a case."""
    ranks = 1
    for size in grid.values():
        ranks *= size
    replicas = grid.get("data", 1)
    job = load_job(
        {
            "strategy": "megatron",
            "flavour": "torch",
            "model": MODEL,
            "machine": {"extends": "laptop", "nodes": 8},
            "ranks": ranks,
            "grid": grid,
            "precision": "fp32",
            "recompute": False,
            "batch": {
                "sequences": parity.SEQUENCES,
                "micro_sequences": max(1, parity.SEQUENCES // replicas // micro_steps),
            },
            **options,
        }
    )
    assert isinstance(job, MegatronJob)
    return job


def as_four_d(job: MegatronJob) -> dict[str, int]:
    """The 4D grid whose groups have the same ranks."""
    ranks = Ranks.of(job)
    if ranks.size("shard") > 1 < ranks.size("context"):
        assert ranks.ranks == ranks.weights, "4D has no such groups"
        return {"data": 1, "z": ranks.size("shard"), "y": ranks.size("context"), "x": 1}
    return {"data": ranks.pipeline, "z": ranks.data, "y": ranks.weights, "x": ranks.tensor}


def build(job: MegatronJob, mesh: Mesh, dtype: torch.dtype) -> MegatronTrainee:
    """Make model and optimizer of one rank."""
    master = torch.float32 if dtype == torch.bfloat16 else dtype
    return trainee_in(MegatronContext(job, mesh, torch.device("cpu"), dtype, master), Adam())


def mesh_of(worker: Any, job: MegatronJob) -> Mesh:
    """The mesh of a rank, of groups that are there."""
    whole, ranks = worker.mesh(Grid(**as_four_d(job))), Ranks.of(job)
    groups = {ours: whole.groups[theirs] for ours, theirs in GROUPS.items() if theirs in whole.groups}
    if whole.everyone is not None:
        groups[ranks.everyone] = whole.everyone
        if ranks.size("shard") > 1 < ranks.size("context"):
            groups |= {GATHER: whole.everyone, SCATTER: whole.everyone, "shard": whole.groups["z_gather"]}
            groups.pop(REPLICATE)
    return Mesh(ranks, whole.rank, ranks.coordinates(whole.rank), groups, whole.everyone)


def run(
    worker: Any,
    grid: dict[str, int],
    axes: dict[str, int],
    dtype: str,
    goldfish: bool = False,
    steps: int = parity.STEPS,
    **options: Any,
) -> tuple[list[float], list[float], parity.Pieces]:
    """Train; returns losses, gradient norms, and this rank's pieces of the parameters."""
    del grid  # the pool has made its groups
    job = describe(axes, **options)
    trainee = build(job, mesh_of(worker, job), getattr(torch, dtype))
    losses, norms = train(trainee, steps, goldfish)
    return losses, norms, parity.pieces(trainee)


def losses(
    worker: Any, grid: dict[str, int], axes: dict[str, int], dtype: str, rounds: int, **options: Any
) -> list[float]:
    """Losses of several rounds over the batches."""
    del grid
    job = describe(axes, **options)
    trainee = build(job, mesh_of(worker, job), getattr(torch, dtype))
    return [loss for _ in range(rounds) for loss in train(trainee, parity.STEPS)[0]]


def asked(worker: Any, grid: dict[str, int], axes: dict[str, int], **options: Any) -> tuple[float, list[list[float]]]:
    """The loss on two sequences after a step of training, and the logits of the token after three others."""
    del grid
    job = describe(axes, **options)
    trainee = build(job, mesh_of(worker, job), torch.float64)
    train(trainee, 1)
    trainee.context.training = False
    window = parity.windows()[1][:2]
    loss = trainee.loss(window[:, :-1], window[:, 1:], torch.ones(2, parity.MODEL["sequence"], dtype=torch.float64))
    logits = trainee.last_logits(window[:, :3])
    trainee.context.training = True
    train(trainee, 1)  # which goes on as if nobody had asked
    return loss.item(), logits.tolist()


def overflows(
    worker: Any, grid: dict[str, int], axes: dict[str, int], weight: str, *, named: bool = True, **options: Any
) -> str:
    """What is said of a step in which a product with huge weights overflows; messages named, or as NCCL sends them."""
    with patch.object(Messages, "are_named", named):
        return _overflows(worker, grid, axes, weight, **options)


def _overflows(worker: Any, grid: dict[str, int], axes: dict[str, int], weight: str, **options: Any) -> str:
    del grid
    job = describe(axes, **options)
    trainee = build(job, mesh_of(worker, job), torch.float32)
    found = trainee.context.store.parameters.get(weight)
    if found is not None:
        found.weight.data.fill_(1e38)
    shape = job.concrete_micro_sequences, job.model.sequence
    tokens, weights = torch.zeros(shape, dtype=torch.int64), torch.ones(shape)
    batch = [MicroBatch(micro * shape[0], tokens, tokens, weights) for micro in range(job.micro_steps)]
    return str(find_non_finite(trainee, batch, 3))
