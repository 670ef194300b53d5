"""A rank's optimizer, its states where the job's `offload:` wants them."""

from __future__ import annotations

from runtime.step.context import Context
from runtime.step.offloaded import OffloadedOptimizer
from runtime.step.optimizer import Optimizer
from runtime.step.tiers import Room, offload_of
from twin.description.train import Adam


def optimizer_of(context: Context, settings: Adam) -> Optimizer:
    """Make a rank's optimizer, its states where the job wants them."""
    offload = offload_of(context.job)
    if offload is None or offload.optimizer is None:
        return Optimizer(context, settings)
    room = Room.of(offload, offload.optimizer.to, context.store.device)
    return OffloadedOptimizer(context, settings, offload.optimizer, room)
