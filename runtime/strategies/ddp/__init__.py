"""Plain data parallelism on PyTorch's DistributedDataParallel: a serial model on every rank."""

from __future__ import annotations

import torch

from runtime.model.context import ModelContext
from runtime.model.plain import plain_gpt
from runtime.parallel.mesh import Mesh
from runtime.step.optimizer import FUSED_ADAM, MakeAdam, Optimizer
from runtime.strategies.ddp.trainee import DdpTrainee
from twin.description.train import Adam
from twin.strategies.ddp.job import DdpJob

__all__ = ["RECORDED_ON", "trainee_of"]

RECORDED_ON = "cpu"
"""DDP copies the order of its buckets, which tensors of the meta device do not let it."""


def trainee_of(
    job: DdpJob,
    mesh: Mesh,
    device: torch.device,
    settings: Adam,
    *,
    compile_: bool = False,
    initialised: bool = True,
    make_adam: MakeAdam = FUSED_ADAM,
) -> DdpTrainee:
    """Make the model of a job, with its optimizer, on one replica."""
    context = ModelContext.of_job(job, mesh, device, compile_=compile_, initialised=initialised)
    model = plain_gpt(context)
    return DdpTrainee(context, model, Optimizer(context, settings, make_adam))
