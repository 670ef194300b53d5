"""Plain data parallelism on PyTorch's DistributedDataParallel: a serial model on every rank."""

from __future__ import annotations

from runtime.model.context import ModelContext
from runtime.model.plain import plain_gpt
from runtime.step.optimizer import FUSED_ADAM, MakeAdam, Optimizer
from runtime.strategies.ddp.trainee import DdpTrainee
from twin.description.train import Adam

__all__ = ["CONTEXT", "RECORDED_ON", "trainee_in"]

CONTEXT = ModelContext
"""What all of a rank's layers know."""

RECORDED_ON = "cpu"
"""DDP copies the order of its buckets, which tensors of the meta device do not let it."""


def trainee_in(context: ModelContext, settings: Adam, make_adam: MakeAdam = FUSED_ADAM) -> DdpTrainee:
    """Make the model of a job, with its optimizer, on one replica."""
    return DdpTrainee(context, plain_gpt(context), Optimizer(context, settings, make_adam))
