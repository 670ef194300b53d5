"""A rank's optimizer, its states where the job's `offload:` wants them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runtime.step.context import Context
from runtime.step.offloaded import OffloadedOptimizer
from runtime.step.optimizer import Optimizer
from runtime.step.tiers import Room, offload_of
from twin.description.train import Adam


def masters_in(context: Context) -> Callable[[int, torch.dtype], torch.Tensor] | None:
    """Return what makes room for master weights beyond the device, where the job wants them; the store's `masters_in`.

    They never stand on the device then, which has no room for them beside what layers compute with.
    """
    room = _room_of(context)
    return None if room is None else room.zeros


def optimizer_of(context: Context, settings: Adam) -> Optimizer:
    """Make a rank's optimizer, its states where the job wants them."""
    offload, room = offload_of(context.job), _room_of(context)
    if offload is None or offload.optimizer is None or room is None:
        return Optimizer(context, settings)
    return OffloadedOptimizer(context, settings, offload.optimizer, room)


def _room_of(context: Context) -> Room | None:
    offload = offload_of(context.job)
    if offload is None or offload.optimizer is None:
        return None
    return Room.of(offload, offload.optimizer.to, context.store.device)
