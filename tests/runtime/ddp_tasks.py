"""Training with DistributedDataParallel on one rank, to be compared with the serial model."""

from __future__ import annotations

from typing import Any

import torch

from runtime.model.context import ModelContext
from runtime.model.plain import plain_gpt
from runtime.parallel.mesh import Mesh
from runtime.step.optimizer import Optimizer
from runtime.step.trainee import MicroBatch
from runtime.strategies.ddp.trainee import DdpTrainee
from tests.runtime import parity
from twin.description.train import Adam
from twin.strategies import load_job
from twin.strategies.ddp.job import DdpJob
from twin.strategies.ddp.job import Grid as Replicas
from twin.strategies.four_d.grid import Grid


def describe(ranks: int, micro_steps: int = 2, **options: Any) -> DdpJob:
    """The job of a case."""
    job = load_job(
        {
            "strategy": "ddp",
            "model": parity.MODEL,
            "machine": {"extends": "laptop", "nodes": 8},
            "ranks": ranks,
            "grid": {"data": ranks},
            "precision": "fp32",
            "batch": {"sequences": parity.SEQUENCES, "micro_sequences": parity.SEQUENCES // ranks // micro_steps},
            **options,
        }
    )
    assert isinstance(job, DdpJob)
    return job


def build(job: DdpJob, mesh: Mesh, dtype: torch.dtype) -> DdpTrainee:
    """Make model and optimizer of one rank."""
    context = ModelContext(job, mesh, torch.device("cpu"), dtype, dtype)
    return DdpTrainee(context, plain_gpt(context), Optimizer(context, Adam()))


def run(
    worker: Any, grid: dict[str, int], dtype: str, goldfish: bool = False, **options: Any
) -> tuple[list[float], list[float], parity.Pieces]:
    """Train; returns losses, gradient norms, and the parameters."""
    ranks = grid["data"]
    job, whole = describe(ranks, **options), worker.mesh(Grid(**grid))
    mesh = Mesh(Replicas(data=ranks), whole.rank, {"data": whole.rank}, whole.groups, whole.everyone)
    trainee = build(job, mesh, getattr(torch, dtype))
    size, local = job.concrete_micro_sequences, parity.SEQUENCES // ranks
    losses, norms = [], []
    for step in range(parity.STEPS):
        window, mask = parity.windows(job.model.vocabulary)[step], parity.masks(goldfish)[step]
        mask = mask.to(trainee.context.master_type)
        weights, first = mask / mask.sum(), mesh.replica * local
        batch = [
            MicroBatch(
                step * parity.SEQUENCES + i, window[i : i + size, :-1], window[i : i + size, 1:], weights[i : i + size]
            )
            for i in range(first, first + local, size)
        ]
        figures = trainee.step(batch, parity.RATES[step])
        losses.append(figures.loss.item())
        norms.append(figures.gradient_norm.item())
    return losses, norms, parity.pieces(trainee)
