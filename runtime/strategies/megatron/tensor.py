"""What tensor ranks do together around a layer, by DTensor: who has which part says what is sent.

Tokens of a sequence lie side by side in a rank's part of the residual stream, (sequences · s/t, h). What is gathered
comes rank by rank, and is copied to where it belongs, as DTensor does where it gathers along another dimension than
the first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor  # what redistribute gives; exported nowhere
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from runtime.parallel.ops import Place
from runtime.strategies.megatron.context import MegatronContext
from twin.description.library import CollectiveKind
from twin.schedule.kernels import Memory
from twin.schedule.ops import Phase
from twin.strategies.megatron.linear import TENSOR


def enter(context: MegatronContext, place: Place, stream: torch.Tensor) -> torch.Tensor:
    """Give a layer whose outputs are cut what it reads: all tokens (m, h), gathered if ranks have a part of them.

    Each rank's gradient of that is a part of a sum.
    """
    if not context.split:
        return stream
    result: torch.Tensor = _Enter.apply(stream, context, place)
    return result


def leave(context: MegatronContext, place: Place, parts: torch.Tensor) -> torch.Tensor:
    """Sum what a layer whose inputs are cut gives, (m, h) on every rank; each keeps its tokens if those are cut."""
    if not context.split:
        return parts
    result: torch.Tensor = _Leave.apply(parts, context, place)
    return result


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stream: torch.Tensor, context: MegatronContext, place: Place) -> torch.Tensor:
        ctx.context, ctx.place, ctx.scatters = context, place, context.scatters
        return gathered(context, place, stream, None) if context.scatters else stream.view_as(stream)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        total = scattered if ctx.scatters else summed
        return total(ctx.context, ctx.place, gradient, "bwd"), None, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: torch.Tensor, context: MegatronContext, place: Place) -> torch.Tensor:
        ctx.context, ctx.place, ctx.scatters = context, place, context.scatters
        return (scattered if context.scatters else summed)(context, place, parts, None)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (gathered(ctx.context, ctx.place, gradient, "bwd") if ctx.scatters else gradient), None, None


def summed(context: MegatronContext, place: Place, parts: torch.Tensor, phase: Phase | None) -> torch.Tensor:
    """Sum over tensor ranks."""
    return _moved(context, place, "all_reduce", parts, (Partial(), Replicate()), parts.nbytes, phase)


def gathered(context: MegatronContext, place: Place, part: torch.Tensor, phase: Phase | None) -> torch.Tensor:
    """Gather the tokens of all tensor ranks."""
    ranks = context.ranks.tensor
    whole = _moved(context, place, "all_gather", part, (Shard(0), Replicate()), part.nbytes * ranks, phase)
    return _ordered(context, place, whole, (ranks, context.sequences, -1), phase)


def scattered(context: MegatronContext, place: Place, parts: torch.Tensor, phase: Phase | None) -> torch.Tensor:
    """Sum over tensor ranks; each keeps its part of every sequence."""
    ordered = _ordered(context, place, parts, (context.sequences, context.ranks.tensor, -1), phase)
    return _moved(context, place, "reduce_scatter", ordered, (Partial(), Shard(0)), parts.nbytes, phase)


def _ordered(
    context: MegatronContext, place: Place, rows: torch.Tensor, shape: tuple[int, int, int], phase: Phase | None
) -> torch.Tensor:
    """Let the two outermost of three dimensions of rows change places, in new memory."""

    def run() -> torch.Tensor:
        turned = rows.view(*shape, rows.shape[1]).transpose(0, 1)
        return turned.clone(memory_format=torch.contiguous_format).view_as(rows)

    return context.ops.compute(place, "order", run, lambda: Memory(2.0 * rows.nbytes, work="copy"), phase=phase)


def _moved(
    context: MegatronContext,
    place: Place,
    kind: CollectiveKind,
    local: torch.Tensor,
    way: tuple[Placement, Placement],
    size_bytes: float,
    phase: Phase | None,
) -> torch.Tensor:
    """Let DTensor bring a rank's tensor from one placement to another."""
    collectives = context.collectives
    op = collectives.described(place, kind, TENSOR, size_bytes, phase)
    arriving = _Arriving()

    def launch() -> _Arriving:
        with torch.no_grad():
            here = DTensor.from_local(local.contiguous(), context.tensor_mesh, [way[0]], run_check=False)
            arriving.tensor = here.redistribute(placements=[way[1]], async_op=True).to_local()
        return arriving

    return collectives.foreign(op, launch, lambda: arriving.tensor).wait()


class _Arriving:
    """What DTensor has started to send."""

    tensor: torch.Tensor

    def wait(self) -> None:
        """Wait until it is there."""
        if isinstance(self.tensor, AsyncCollectiveTensor):
            self.tensor = self.tensor.wait()
