"""The step of one rank, of whose weights nothing is divided: gradients go into the store's sums, unit by unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from runtime.model.plain import PlainGPT
from runtime.sharded.units import Unit
from runtime.strategies.fsdp.context import FsdpContext
from twin.schedule.kernels import Memory


class Sums:
    """Gradients on their way into sums, when the backward pass has left a unit."""

    def __init__(self, context: FsdpContext, model: PlainGPT, units: Sequence[Unit]) -> None:
        self.context, self.model = context, model
        self._last = units[0]
        """What has no gradient to pass on: the backward pass ends with it."""
        for unit in units[1:]:
            unit.modules[0].register_forward_pre_hook(partial(self._notify, unit))

    def _notify(self, unit: Unit, _module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if not torch.is_grad_enabled() or self.context.ops.forward_phase == "recompute":
            return inputs
        passed: torch.Tensor = _Left.apply(inputs[0], partial(self.add, unit))
        return passed, *inputs[1:]

    def add(self, unit: Unit) -> None:
        """Add the gradients of a unit."""
        parameters = [(self.context.store.parameters[name], self.model.get_parameter(name)) for name in unit.members]

        def run() -> None:
            for parameter, weight in parameters:
                assert weight.grad is not None, f"{parameter.spec.name} has no gradient"
                parameter.accumulate(weight.grad)
                weight.grad = None

        def describe() -> Memory:
            moved = sum(parameter.accumulation(weight.detach()) for parameter, weight in parameters)
            return Memory(moved, work="accumulate")

        self.context.ops.compute(unit.place, "accumulate", run, describe, phase="bwd")

    def end(self) -> None:
        """Add what comes last."""
        self.add(self._last)

    def finish(self) -> None:
        """There is nobody to reduce with."""


class _Left(torch.autograd.Function):
    """Calls when the gradient of its input is complete."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, left: Callable[[], None]) -> torch.Tensor:
        ctx.left = left
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.left()
        return gradient, None
