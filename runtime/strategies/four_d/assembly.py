"""The model of a job, with its optimizer, on one rank of a 4D mesh."""

from __future__ import annotations

from runtime.step.beyond import masters_in, optimizer_of
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.model import GPT
from runtime.strategies.four_d.trainee import FourDTrainee
from twin.description.train import Adam

CONTEXT = FourDContext
"""What all of a rank's layers know."""


def trainee_in(context: FourDContext, settings: Adam) -> FourDTrainee:
    """Make them."""
    context.store.masters_in = masters_in(context)
    return FourDTrainee(context, GPT(context), optimizer_of(context, settings))
