"""Activations and the residual sum, with dropout that agrees on replicas and differs across shards."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from runtime.model.functions import exact_gelu, gelu, swiglu
from runtime.parallel import random
from runtime.parallel.ops import Place
from runtime.parallel.region import Region, add, plus
from runtime.strategies.four_d.context import FourDContext
from twin.schedule.kernels import Memory

FUNCTIONS = {"gelu": gelu, "gelu_exact": exact_gelu, "swiglu": swiglu}


def activate(
    context: FourDContext, place: Place, inner: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Apply GELU to (m, mlp/G_y), or SwiGLU to (m, 2·mlp/G_y).

    A bias is what the linear before left to be added here.
    """
    kind, size = context.job.model.mlp_kind, float(inner.nbytes)
    # gate and up lie side by side: reads both, writes half as much; back: reads 3/2, writes 2/2
    passes = 1.5 if kind == "swiglu" else 2.0
    run = fused(context, FUNCTIONS[context.job.model.activation])
    return Region(
        context.ops,
        place,
        kind,
        lambda x: run(x, bias),
        lambda: Memory(passes * size, work=kind),
        lambda: Memory((passes + 1) * size, work=kind),
    )(inner)


def residual(
    context: FourDContext,
    place: Place,
    name: str,
    stream: torch.Tensor,
    update: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add an update (m, h/G_x), thinned by dropout, to the residual stream.

    A bias is what the linear before left to be added here, before dropout.
    """
    size, drop = float(stream.nbytes), context.job.dropout
    if not drop or not context.training:
        return add(stream, update, bias, context.ops, place, name)
    keep = kept(context, place, name, update)
    run = fused(context, dropped_sum)
    # the mask has one byte for an element; unless fused, dropout is a kernel of its own
    passes, mask = 3 if context.job.fused_elementwise else 5, size / stream.element_size()
    return Region(
        context.ops,
        place,
        name,
        lambda a, b: run(a, b, bias, keep, 1.0 / (1.0 - drop)),
        lambda: Memory(passes * size + mask, work="residual"),
        lambda: Memory(2 * size + mask, work="residual_dropout"),
        backward_name=f"{name}_dropout",
    )(stream, update)


def kept(context: FourDContext, place: Place, name: str, activation: torch.Tensor) -> torch.Tensor:
    """Dropout's mask of (m, h/G_x), the same for an element on every grid and when recomputed."""
    stream = random.key(context.job.seed, context.step, place.path, name)
    rows = torch.arange(activation.shape[0], device=activation.device)
    rows += context.first_sequence * context.job.model.sequence
    width = activation.shape[1]
    columns = torch.arange(width, device=activation.device) + width * context.mesh.coordinates["x"]
    return random.keep_mask(rows, columns, stream, context.job.dropout)


def dropped_sum(
    stream: torch.Tensor, update: torch.Tensor, bias: torch.Tensor | None, keep: torch.Tensor, scale: float
) -> torch.Tensor:
    """Add what dropout keeps of update + bias, scaled so that the expectation stays."""
    return stream + plus(update, bias) * keep * scale


def fused(context: FourDContext, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Let torch.compile fuse an element-wise function, if the job asks for it.

    Not while evaluating or sampling, whose shapes change and would be compiled each on its own.
    """
    return _compiled(function) if context.compile and context.training else function


@cache
def _compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return torch.compile(function, dynamic=False)
