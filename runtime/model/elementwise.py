"""Activations and the residual sum, with dropout that agrees on replicas and differs across shards."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from runtime.model.context import ModelContext
from runtime.model.functions import exact_gelu, gelu, swiglu, swiglu_in_steps
from runtime.parallel import random
from runtime.parallel.ops import Place
from runtime.parallel.region import Region, add, plus
from twin.schedule.kernels import Memory

FUNCTIONS = {"gelu": (gelu, gelu), "gelu_exact": (exact_gelu, exact_gelu), "swiglu": (swiglu, swiglu_in_steps)}
"""To be fused, and to be run as it stands."""
LINE_BYTES = 40
"""What is moved for a row of a mask besides its elements: two numbers, multiplied, added to, and read."""


def activate(
    context: ModelContext, place: Place, inner: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Apply GELU to (m, width), or SwiGLU to (m, 2 · width).

    A bias is what the linear before left to be added here.
    """
    kind, size = context.job.model.mlp_kind, float(inner.nbytes)
    # gate and up lie side by side: reads both, writes half as much; back: reads 3/2, writes 2/2
    passes, back = (1.5, 2.5) if kind == "swiglu" else (2.0, 3.0)
    in_steps = kind == "swiglu" and not context.job.fused_elementwise
    if in_steps:  # silu, product; back: two kernels for each half
        passes, back = 2.5, 5.5
    work = f"{kind}/steps" if in_steps else kind
    run = fused(context, *FUNCTIONS[context.job.model.activation])
    return Region(
        context.ops,
        place,
        kind,
        lambda x: run(x, bias),
        lambda: Memory(passes * size, work=work),
        lambda: Memory(back * size, work=work),
    )(inner)


def residual(
    context: ModelContext,
    place: Place,
    name: str,
    stream: torch.Tensor,
    update: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    first_column: int = 0,
    rows: tuple[range, ...] | None = None,
    summed: bool = True,
) -> torch.Tensor:
    """Add an update (m, width), thinned by dropout, to the residual stream, of whose columns it is those from one on.

    `rows` are the places of its tokens among all ever trained on; those of the micro-step's sequences if absent.
    With `summed` false the gradients alone are wanted, and what is returned holds no sum.

    A bias is what the linear before left to be added here, before dropout.
    """
    if not context.job.dropout or not context.training:
        if not summed:
            unsummed: torch.Tensor = _Unsummed.apply(stream, update)
            return unsummed
        return add(stream, update, bias, context.ops, place, name)
    first = context.first_sequence * context.job.model.sequence
    columns = range(first_column, first_column + update.shape[1])
    keep = mask(context, place, name, rows or (range(first, first + update.shape[0]),), columns)
    result: torch.Tensor = _DroppedSum.apply(stream, update, keep, bias, context, place, name, summed)
    return result


def mask(context: ModelContext, place: Place, name: str, rows: tuple[range, ...], columns: range) -> torch.Tensor:
    """Dropout's mask of rows × columns, by their places in the full tensor, as booleans.

    The same for an element on every grid and when recomputed: an op of its own.
    """
    stream = random.key(context.job.seed, context.step, place.path, name)
    begin, slope = context.numbers(rows)
    across = context.numbers((columns,))[0]
    least = random.least_kept(context.job.dropout)
    run = fused(context, random.kept, random.kept_in_steps)
    # three kernels that write int32, that read and write it, and that read it and write bytes; fused one that writes
    each = 1 if context.job.fused_elementwise else 17
    return context.ops.compute(
        place,
        f"{name}_mask",
        lambda: run(*random.lines((begin, slope), stream), across, least),
        lambda: Memory(float(len(begin) * (each * len(columns) + LINE_BYTES)), work="dropout_mask"),
    )


def dropped_sum(
    stream: torch.Tensor, update: torch.Tensor, bias: torch.Tensor | None, keep: torch.Tensor, scale: float
) -> torch.Tensor:
    """Add what dropout keeps of update + bias, scaled so that the expectation stays."""
    return torch.addcmul(stream, plus(update, bias), keep, value=scale)


class _DroppedSum(torch.autograd.Function):
    """Ties the residual sum with dropout into autograd; the stream's gradient is the sum's own."""

    @staticmethod
    def forward(
        ctx: Any,
        stream: torch.Tensor,
        update: torch.Tensor,
        keep: torch.Tensor,
        bias: torch.Tensor | None,
        context: ModelContext,
        place: Place,
        name: str,
        summed: bool,
    ) -> torch.Tensor:
        ctx.save_for_backward(keep)
        ctx.context, ctx.place, ctx.name = context, place, name
        if not summed:
            return stream.view_as(stream)
        run = fused(context, dropped_sum, dropped_sum)
        return context.ops.compute(
            place,
            name,
            lambda: run(stream, update, bias, keep, 1.0 / (1.0 - context.job.dropout)),
            lambda: Memory(float(3 * stream.nbytes + keep.nbytes), work="residual"),
        )

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (keep,) = ctx.saved_tensors
        context: ModelContext = ctx.context
        of_update = context.ops.compute(
            ctx.place,
            f"{ctx.name}_dropout",
            lambda: thinned(gradient, keep, context.job.dropout),
            lambda: Memory(float(2 * gradient.nbytes + keep.nbytes), work="residual_dropout"),
            phase="bwd",
        )
        return gradient, of_update, None, None, None, None, None, None


class _Unsummed(torch.autograd.Function):
    """Where a sum would be that nobody reads: its gradient goes both ways."""

    @staticmethod
    def forward(_ctx: Any, stream: torch.Tensor, _update: torch.Tensor) -> torch.Tensor:
        return stream.view_as(stream)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return gradient, gradient


def thinned(x: torch.Tensor, keep: torch.Tensor, drop: float) -> torch.Tensor:
    """Scale up what is kept of x and drop the rest, in one kernel, without autograd."""
    result: torch.Tensor = torch.ops.aten.native_dropout_backward(x, keep, 1.0 / (1.0 - drop))
    return result


def fused(
    context: ModelContext, function: Callable[..., torch.Tensor], in_steps: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """Let torch.compile fuse an element-wise function, if the job asks for it; else it runs `in_steps`.

    Not while evaluating or sampling, whose shapes change and would be compiled each on its own.
    """
    return _compiled(function) if context.compile and context.training else in_steps


@cache
def _compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return torch.compile(function, dynamic=False)
