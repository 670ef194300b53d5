"""The stages of a job that are on one rank, with their optimizer."""

from __future__ import annotations

from torch.distributed.fsdp import MixedPrecisionPolicy

from runtime.model.plain import PlainGPT, Span
from runtime.model.plain.gpt import whole
from runtime.sharded.units import Shards, Unit, cut, made_on_meta, units_of
from runtime.step.optimizer import Optimizer
from runtime.strategies.megatron.context import MegatronContext
from runtime.strategies.megatron.gradients import Sums
from runtime.strategies.megatron.layers import TensorLayers
from runtime.strategies.megatron.trainee import MegatronTrainee
from twin.description.train import Adam
from twin.strategies.megatron.place import Pipeline

CONTEXT = MegatronContext
"""What all of a rank's layers know."""


def trainee_in(context: MegatronContext, settings: Adam) -> MegatronTrainee:
    """Make the stages of a job that are on one rank, with their optimizer."""
    job, sums = context.job, Sums(context)
    layers = TensorLayers(context, sums)
    places = Pipeline(job).stages(context.mesh.place("pipeline"))
    # declared from the last stage to the first, as backward passes finish with them
    behind_first = sorted(places, key=lambda place: -place.number)
    parts = [(place, PlainGPT(layers, Span(place.first, place.layers, place.last))) for place in behind_first]
    context.store.allocate()
    units: list[Unit] = []
    shards: list[Shards] = []
    for _, model in parts:
        model.fill(made_on_meta if context.sharded else whole)
        if context.sharded:
            policy = MixedPrecisionPolicy(context.compute_type, context.reduce_type, cast_forward_inputs=False)
            own = units_of(model, keep=not job.reshards)
            shards.append(cut(model, own, context.weights_mesh(), policy))
            units += own
    return MegatronTrainee(context, parts, Optimizer(context, settings), sums, units, shards)
