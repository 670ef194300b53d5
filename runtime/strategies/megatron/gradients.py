"""Gradients of a rank's weights: summed over micro-steps, made when a schedule asks for them.

Where a pass gives input gradients alone its linears leave their weight gradients for later. In a pipeline whose weights
FSDP2 divides, gradients are summed whole and given to it for one reduction; where nobody divides them they are
added to the store's sums. Without a pipeline FSDP2 takes each micro-step's from autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.distributed.fsdp import FSDPModule

from runtime.model.plain import PlainGPT
from runtime.parallel.ops import Place
from runtime.strategies.megatron.context import MegatronContext
from twin.schedule.kernels import Memory


@dataclass
class Sums:
    """Sums of weight gradients of one rank."""

    context: MegatronContext
    whole: dict[str, torch.Tensor] = field(default_factory=dict)
    """Of weights that FSDP2 divides, until it reduces them."""

    @property
    def by_autograd(self) -> bool:
        """Whether FSDP2 reduces in each micro-step's backward pass."""
        return self.context.sharded and self.context.job.reduces_each

    def take(self, name: str, place: Place, weight_gradient: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        """Make a linear's weight gradient, for autograd, or for the sums: then at once or later."""
        if self.by_autograd:
            return weight_gradient()

        @torch.no_grad()
        def run() -> None:
            self._add(f"{name}.weight", place, weight_gradient())

        if self.context.half == "input":
            self.context.deferred.append(run)
        else:
            run()
        return None

    def _add(self, name: str, place: Place, gradient: torch.Tensor) -> None:
        context = self.context
        if not context.sharded:
            parameter = context.store.parameters[name]
            moved = Memory(parameter.accumulation(gradient), work="accumulate")
            context.ops.compute(place, "accumulate", lambda: parameter.accumulate(gradient), lambda: moved, phase="bwd")
            return
        known, kind = self.whole.get(name), context.reduce_type
        if known is None and gradient.dtype == kind:
            self.whole[name] = gradient
            return
        each = gradient.element_size() + kind.itemsize * (1 if known is None else 2)
        moved = Memory(float(gradient.numel() * each), work="accumulate")

        def run() -> torch.Tensor:
            return gradient.to(kind) if known is None else known.add_(gradient)

        self.whole[name] = context.ops.compute(place, "accumulate", run, lambda: moved, phase="bwd")

    def later(self) -> Callable[[], None]:
        """Return what makes the gradients that the pass at work left for later."""
        left, self.context.deferred = self.context.deferred, []

        def run() -> None:
            for each in left:
                each()

        return run

    def give(self, model: PlainGPT) -> None:
        """Give FSDP2 the sums of a stage."""
        names = {id(model.parameter(name)): name for name in model.names if name in self.whole}
        states = {id(m._get_fsdp_state()): m for m in model.modules() if isinstance(m, FSDPModule)}
        for module in states.values():  # a unit of several modules has one state
            for group in module._get_fsdp_state()._fsdp_param_groups:
                for each in group.fsdp_params:
                    name = names.get(id(each.unsharded_param))
                    if name is not None:
                        each.unsharded_accumulated_grad = self.whole.pop(name).view_as(each.unsharded_param)

    def collect(self, model: PlainGPT) -> None:
        """Add to the store's sums what autograd gave of a pass: gradients of vectors and tables that nobody divides."""
        if self.context.sharded:
            return
        for name in model.names:
            weight = model.parameter(name)
            if weight.grad is not None:
                self.context.store.parameters[name].accumulate(weight.grad)
                weight.grad = None
