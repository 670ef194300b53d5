"""Differentiable work under a name, forward and backward.

`region` runs any function of tensors as one named op; autograd's own backward of it is
one named op too. So attention, activations and residual sums need no hand-written gradients.

A timer of the host hears where that begins and ends in autograd's graph, by hooks. For others, who look at what is
computed, or count it, or time a device, it runs apart, as a graph of its own: that takes twice as much of the host. So
it does where a parameter is read, whose gradient would be added up, and sent, in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.autograd.graph import Node, get_gradient_edge

from runtime.parallel.differentiate import gradients
from runtime.parallel.ops import Describe, Ops, Place, Timer
from twin.schedule.kernels import Memory


@dataclass(frozen=True)
class Region:
    """A function of tensors that returns one tensor, and what it costs."""

    ops: Ops
    place: Place
    name: str
    run: Callable[..., torch.Tensor]
    describe: Describe
    describe_backward: Describe
    backward_name: str = ""
    """Name in the backward pass if it is another."""
    given: bool = False
    """Whether its result was kept, so that running it computes nothing."""

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Run it."""
        if self.ops.listener is None:
            return self.run(*inputs)  # nobody hears names: autograd may have it its own way
        if not (torch.is_grad_enabled() and any(t.requires_grad for t in inputs)):
            return self.forward(inputs)
        if self.ops.listener.in_autograd and not any(t.is_leaf and t.requires_grad for t in inputs):
            return self._hooked(self.forward(inputs), inputs)
        result: torch.Tensor = _Region.apply(self, *inputs)
        return result

    def forward(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Run the function under its name, if it computes anything."""
        if self.given:
            return self.run(*inputs)
        return self.ops.compute(self.place, self.name, lambda: self.run(*inputs), self.describe)

    def _hooked(self, output: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Let a timer hear the backward pass of what the function made of inputs."""
        before = [t.grad_fn for t in inputs if t.grad_fn is not None]
        if output.grad_fn is None or output.grad_fn in before:
            output = output.view_as(output)  # nothing was computed: a node that is the function's own
        begun: list[Any] = []

        def begin(_gradients: Any) -> None:
            name, timer = self.backward_name or self.name, cast("Timer | None", self.ops.listener)
            if timer is not None:
                begun.append(timer.begin(self.ops.work(self.place, name, self.describe_backward, "bwd")))

        def end(_found: Any, _gradients: Any) -> None:
            timer = cast("Timer | None", self.ops.listener)
            if timer is not None and begun:
                timer.end(begun[-1])

        first = output.grad_fn
        if first is None:
            return output  # it has no gradient
        first.register_prehook(begin)
        for node in _last(first, before):
            node.register_hook(end)
        return output


def _last(first: Node, before: list[Node]) -> Iterable[Node]:
    """Return the nodes of a graph, from its first one back, that lead out of it alone: to nodes before, and leaves."""
    found, seen, ahead = [], {first}, [first]
    while ahead:
        node = ahead.pop()
        inside = [n for n, _ in node.next_functions if n is not None and n not in before and n.next_functions]
        if not inside:
            found.append(node)
        ahead += [n for n in inside if n not in seen]
        seen.update(inside)
    return found


class _Region(torch.autograd.Function):
    """Keeps the function's own little graph until its backward."""

    @staticmethod
    def forward(ctx: Any, region: Region, *inputs: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            leaves = tuple(t.detach().requires_grad_(t.requires_grad) for t in inputs)
            output = region.forward(leaves)
        # the edge keeps the graph, not the output: whether that is kept is for those who read it
        ctx.region, ctx.leaves, ctx.edge = region, leaves, get_gradient_edge(output)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        region: Region = ctx.region
        wanted = [leaf for leaf in ctx.leaves if leaf.requires_grad]

        def run() -> tuple[torch.Tensor, ...]:
            return gradients(ctx.edge, wanted, gradient)

        found = iter(
            region.ops.compute(
                region.place, region.backward_name or region.name, run, region.describe_backward, phase="bwd"
            )
        )
        each = tuple(next(found) if leaf.requires_grad else None for leaf in ctx.leaves)
        ctx.leaves = ctx.edge = None
        return (None, *each)


def plus(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Add a bias, if there is one."""
    return x if bias is None else x + bias


def add(
    stream: torch.Tensor, update: torch.Tensor, bias: torch.Tensor | None, ops: Ops, place: Place, name: str
) -> torch.Tensor:
    """Add two tensors, and a bias, under a name; the gradient goes both ways as it is, without work."""
    if ops.listener is None:
        return stream + plus(update, bias)
    if ops.listener.in_autograd:
        moved = 3.0 * stream.nbytes
        return ops.compute(place, name, lambda: stream + plus(update, bias), lambda: Memory(moved, work="residual"))
    result: torch.Tensor = _Add.apply(stream, update, bias, ops, place, name)
    return result


class _Add(torch.autograd.Function):
    """A sum, which needs nothing kept for its backward."""

    @staticmethod
    def forward(
        _ctx: Any,
        first: torch.Tensor,
        second: torch.Tensor,
        bias: torch.Tensor | None,
        ops: Ops,
        place: Place,
        name: str,
    ) -> torch.Tensor:
        return ops.compute(
            place, name, lambda: first + plus(second, bias), lambda: Memory(3.0 * first.nbytes, work="residual")
        )

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradient, gradient, None, None, None, None


def branch(stream: torch.Tensor, ops: Ops, place: Place, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Split the residual stream in two; the gradients that meet there are added under a name."""
    if ops.listener is None:
        return stream, stream
    kept, branched = _Branch.apply(stream, ops, place, name)
    return kept, branched


class _Branch(torch.autograd.Function):
    """The same tensor twice."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, ops: Ops, place: Place, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.ops, ctx.place, ctx.name = ops, place, name
        return inputs.view_as(inputs), inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        total = ctx.ops.compute(
            ctx.place,
            ctx.name,
            lambda: first + second,
            lambda: Memory(3.0 * first.nbytes, work="residual"),
            phase="bwd",
        )
        return total, None, None, None


def unpack(packed: torch.Tensor, widths: tuple[int, ...], ops: Ops, place: Place) -> tuple[torch.Tensor, ...]:
    """Split (m, widths) in parts (m, width), which are views; their gradients are packed into one as the op `pack`."""
    if ops.listener is None:  # autograd's own split does the same
        return torch.split(packed, list(widths), 1)
    parts: tuple[torch.Tensor, ...] = _Unpack.apply(packed, widths, ops, place)
    return parts


class _Unpack(torch.autograd.Function):
    """Parts of a tensor, whose gradients are copied side by side."""

    @staticmethod
    def forward(
        ctx: Any, packed: torch.Tensor, widths: tuple[int, ...], ops: Ops, place: Place
    ) -> tuple[torch.Tensor, ...]:
        ctx.ops, ctx.place = ops, place
        return tuple(part.view_as(part) for part in packed.split(widths, 1))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        moved = 2.0 * sum(gradient.nbytes for gradient in gradients)
        packed = ctx.ops.compute(
            ctx.place, "pack", lambda: torch.cat(gradients, 1), lambda: Memory(moved, work="pack"), phase="bwd"
        )
        return packed, None, None, None
