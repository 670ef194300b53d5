"""Training with FSDP2 on one rank, to be compared with the serial model."""

from __future__ import annotations

from typing import Any

import torch

from runtime.parallel.mesh import Mesh
from runtime.step.trainee import MicroBatch, Trainee
from runtime.strategies.fsdp.assembly import trainee_in
from runtime.strategies.fsdp.context import FsdpContext
from runtime.strategies.fsdp.trainee import FsdpTrainee
from tests.runtime import parity
from twin.description.train import Adam
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid
from twin.strategies.fsdp.job import FsdpJob
from twin.strategies.fsdp.job import Grid as Shared

GROUPS = {"data": "data", "weights_gather": "z_gather", "weights_scatter": "z_scatter"}
"""Communicators, and those of the 4D grid `as_four_d` that have the same ranks."""


def as_four_d(grid: dict[str, int]) -> dict[str, int]:
    """The 4D grid whose groups have the same ranks."""
    return {"data": grid.get("data", 1), "z": grid.get("weights", 1), "y": 1, "x": 1}


def describe(grid: dict[str, int], micro_steps: int = 2, **options: Any) -> FsdpJob:
    """The job of a case."""
    shared = Shared(**grid)
    job = load_job(
        {
            "strategy": "fsdp",
            "model": parity.MODEL,
            "machine": {"extends": "laptop", "nodes": 8},
            "ranks": shared.ranks,
            "grid": grid,
            "precision": "fp32",
            "recompute": False,
            "batch": {
                "sequences": parity.SEQUENCES,
                "micro_sequences": max(1, parity.SEQUENCES // shared.ranks // micro_steps),
            },
            **options,
        }
    )
    assert isinstance(job, FsdpJob)
    return job


def build(job: FsdpJob, mesh: Mesh, dtype: torch.dtype) -> FsdpTrainee:
    """Make model and optimizer of one rank."""
    master = torch.float32 if dtype == torch.bfloat16 else dtype
    return trainee_in(FsdpContext(job, mesh, torch.device("cpu"), dtype, master), Adam())


def mesh_of(worker: Any, grid: dict[str, int]) -> Mesh:
    """The mesh of a rank, of groups that are there."""
    whole, shared = worker.mesh(Grid(**as_four_d(grid))), Shared(**grid)
    groups = {ours: whole.groups[theirs] for ours, theirs in GROUPS.items() if theirs in whole.groups}
    return Mesh(shared, whole.rank, shared.coordinates(whole.rank), groups, whole.everyone)


def train(trainee: Trainee, steps: int, goldfish: bool = False, first_step: int = 0) -> tuple[list[float], list[float]]:
    """Train on the batches of the serial model; returns losses and gradient norms."""
    job, mesh = trainee.context.job, trainee.context.mesh
    size, local = job.concrete_micro_sequences, parity.SEQUENCES // mesh.grid.replicas
    first, losses, norms = mesh.replica * local, [], []
    for step in range(first_step, first_step + steps):
        window, mask = parity.windows(job.model.vocabulary)[step], parity.masks(goldfish)[step]
        mask = mask.to(trainee.context.master_type)
        weights = mask / mask.sum()
        documents = parity.begins()[step] if job.document_mask else None
        batch = [
            MicroBatch(
                step * parity.SEQUENCES + i,
                window[i : i + size, :-1],
                window[i : i + size, 1:],
                weights[i : i + size],
                None if documents is None else documents[i : i + size],
            )
            for i in range(first, first + local, size)
        ]
        figures = trainee.step(batch, parity.RATES[step])
        losses.append(figures.loss.item())
        norms.append(figures.gradient_norm.item())
    return losses, norms


def run(
    worker: Any,
    grid: dict[str, int],
    shared: dict[str, int],
    dtype: str,
    goldfish: bool = False,
    steps: int = parity.STEPS,
    **options: Any,
) -> tuple[list[float], list[float], parity.Pieces]:
    """Train; returns losses, gradient norms, and this rank's pieces of the parameters."""
    del grid  # the pool has made its groups
    trainee = build(describe(shared, **options), mesh_of(worker, shared), getattr(torch, dtype))
    losses, norms = train(trainee, steps, goldfish)
    return losses, norms, parity.pieces(trainee)


def losses(
    worker: Any, grid: dict[str, int], shared: dict[str, int], dtype: str, rounds: int, **options: Any
) -> list[float]:
    """Losses of several rounds over the batches."""
    del grid
    trainee = build(describe(shared, **options), mesh_of(worker, shared), getattr(torch, dtype))
    return [loss for _ in range(rounds) for loss in train(trainee, parity.STEPS)[0]]


def losses_of_four_d(worker: Any, grid: dict[str, int], dtype: str, rounds: int, **options: Any) -> list[float]:
    """The same by the 4D algorithm."""
    job = parity.describe(grid, **options)
    trainee = parity.build(job, worker.mesh(Grid(**grid)), getattr(torch, dtype))
    return [loss for _ in range(rounds) for loss in train(trainee, parity.STEPS)[0]]
