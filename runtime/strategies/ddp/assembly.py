"""The model of a job, with its optimizer, on one replica."""

from __future__ import annotations

from runtime.model.context import ModelContext
from runtime.model.plain import plain_gpt
from runtime.step.optimizer import Optimizer
from runtime.strategies.ddp.trainee import DdpTrainee
from twin.description.train import Adam

CONTEXT = ModelContext
"""What all of a rank's layers know."""


def trainee_in(context: ModelContext, settings: Adam) -> DdpTrainee:
    """Make them."""
    return DdpTrainee(context, plain_gpt(context), Optimizer(context, settings))
