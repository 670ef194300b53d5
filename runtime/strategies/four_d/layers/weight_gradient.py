"""The gradient of a linear's weight: a product, and what becomes of it.

Over z it is reduced and scattered; on one rank of z it is added to the parameter's sum, by the product itself where the
sum has the product's type.
"""

from __future__ import annotations

import torch

from runtime.parallel.ops import Place
from runtime.strategies.four_d.context import FourDContext
from runtime.weights.store import Parameter
from twin.schedule.kernels import Gemm, Memory


def weight_gradient(
    context: FourDContext, place: Place, parameter: Parameter, inputs: torch.Tensor, gradient: torch.Tensor
) -> None:
    """Compute dW (n/G_o, k/G_c) of inputs (m, k/G_c) and the gradient of outputs (m, n/G_o), and send it on its way."""
    gathers, ops, gemms = context.gathers, context.ops, context.gemms
    in_place = gathers.z == 1 and parameter.gradient.dtype == inputs.dtype
    # of the two halves of a micro-step one weight gradient is scattered
    others = gathers.held.pop(id(parameter), None)

    def gemm() -> torch.Tensor | None:
        if in_place:
            _accumulate_product(context, parameter, inputs, gradient)
            return None
        if others is not None:
            gemms.accumulate("weight_gradient", gradient.t(), inputs, others)
            return others
        rows, columns = gradient.shape[1], inputs.shape[1]
        out = gathers.collectives.buffers.take(rows * columns, inputs).view(rows, columns) if gathers.z > 1 else None
        return gemms.product("weight_gradient", gradient.t(), inputs, out=out)

    def describe() -> Gemm:
        adds = others is not None or (in_place and parameter.seen)
        return gemms.kernel("weight_gradient", gradient.t(), inputs, adds=adds)

    product = ops.compute(place, "weight_gradient", gemm, describe, phase="bwd")
    if gathers.z > 1:
        assert product is not None
        if context.half == 0:
            gathers.held[id(parameter)] = product
        else:
            gathers.scatter(parameter, product)
    elif product is not None:
        ready = product
        ops.compute(
            place,
            "accumulate",
            lambda: parameter.accumulate(ready),
            lambda: Memory(parameter.accumulation(ready), work="accumulate"),
            phase="bwd",
        )


def _accumulate_product(
    context: FourDContext, parameter: Parameter, inputs: torch.Tensor, gradient: torch.Tensor
) -> None:
    """Let the product add to the sum itself: by oneDNN with a second buffer and pass, else without."""
    total = parameter.local_gradient
    if parameter.seen:
        context.gemms.accumulate("weight_gradient", gradient.t(), inputs, total)
    else:
        context.gemms.product("weight_gradient", gradient.t(), inputs, out=total)
        parameter.seen = True
