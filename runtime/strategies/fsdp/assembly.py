"""The model of a job, with its optimizer, on one rank: a plain model that FSDP2 cuts."""

from __future__ import annotations

from torch.distributed.fsdp import MixedPrecisionPolicy

from runtime.model.plain import plain_gpt
from runtime.sharded.units import cut, made_on_meta, units_of
from runtime.step.beyond import masters_in, optimizer_of
from runtime.strategies.fsdp.context import FsdpContext
from runtime.strategies.fsdp.trainee import FsdpTrainee
from twin.description.train import Adam

CONTEXT = FsdpContext
"""What all of a rank's layers know."""


def trainee_in(context: FsdpContext, settings: Adam) -> FsdpTrainee:
    """Make the model of a job, with its optimizer, on one rank."""
    context.store.masters_in = masters_in(context)
    if not context.sharded:
        model = plain_gpt(context)
        units, shards = units_of(model, keep=not context.job.reshard_after_forward), None
    else:
        model = plain_gpt(context, made_on_meta)
        units = units_of(model, keep=not context.job.reshard_after_forward)
        policy = MixedPrecisionPolicy(context.compute_type, context.reduce_type, cast_forward_inputs=False)
        shards = cut(model, units, context.weights_mesh(), policy)
    return FsdpTrainee(context, model, optimizer_of(context, settings), units, shards)
