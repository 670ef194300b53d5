"""A rank's optimizer, its states where the job's `offload:` wants them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runtime.step.context import Context
from runtime.step.offloaded import OffloadedOptimizer
from runtime.step.optimizer import Optimizer
from runtime.step.tiers import Room, offload_of
from twin.description.offload import OptimizerOffload
from twin.description.train import Adam


def masters_in(context: Context) -> Callable[[int, torch.dtype], torch.Tensor] | None:
    """Return what makes room for master weights beyond the device, where the job wants them; the store's `masters_in`.

    They never stand on the device then, which has no room for them beside what layers compute with.
    """
    beyond = _beyond(context)
    return None if beyond is None else beyond[1].zeros


def optimizer_of(context: Context, settings: Adam) -> Optimizer:
    """Make a rank's optimizer, its states where the job wants them."""
    beyond = _beyond(context)
    return Optimizer(context, settings) if beyond is None else OffloadedOptimizer(context, settings, *beyond)


def _beyond(context: Context) -> tuple[OptimizerOffload, Room] | None:
    """Return how the optimizer's states lie beyond the device, and where; None if they do not."""
    offload = offload_of(context.job)
    if offload is None or offload.optimizer is None:
        return None
    return offload.optimizer, Room.of(offload, offload.optimizer.to, context.store.device)
