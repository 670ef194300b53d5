"""RMS norm over features that are split over x: one all-reduce of one number per token, each way.

x · rsqrt(mean(x²) + ε) is rounded to the type of x before it is multiplied by the weight, as everywhere in
the field. On one x rank of a GPU it is PyTorch's own kernel, which has no backward pass for CPUs.
"""

from __future__ import annotations

from typing import Any

import torch

from runtime.parallel.ops import Place
from runtime.strategies.four_d.context import FourDContext
from runtime.weights.shards import ParameterSpec
from twin.schedule.kernels import Memory


class RmsNorm4D(torch.nn.Module):
    """RMS norm of (m, h/G_x), replicated over y."""

    def __init__(self, context: FourDContext, name: str, place: Place, hidden: int) -> None:
        super().__init__()
        self.context, self.place, self.hidden = context, place, hidden
        self.epsilon = context.job.model.norm_epsilon
        self.weight_shard = context.store.declare(ParameterSpec(f"{name}.weight", (hidden,), ("x",), constant=1.0))
        self.split = context.grid.x > 1
        self.ending = "/split" if self.split else ""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise (m, h/G_x)."""
        result: torch.Tensor = _RmsNorm.apply(inputs, self.weight_shard.weight, self)
        return result

    def normalize(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output and reciprocal root of the mean square, (m, 1)."""
        ops, size, wide = self.context.ops, float(x.nbytes), self.context.master_type
        weight = self.weight_shard.local
        total: torch.Tensor | None = None
        if self.split:
            squares = ops.compute(
                self.place,
                "statistics",
                lambda: squared(x.to(wide)),
                lambda: Memory(size, work="norm/statistics/split"),
            )
            total = self.context.collectives.all_reduce(self.place, "x", squares).wait()

        def run() -> tuple[torch.Tensor, torch.Tensor]:
            if total is None and x.is_cuda:
                fused: tuple[torch.Tensor, torch.Tensor] = torch.ops.aten._fused_rms_norm(
                    x, [self.hidden], weight, self.epsilon
                )
                return fused
            widened = x.to(wide)
            scale = reciprocal(squared(widened) if total is None else total, self.hidden, self.epsilon)[:, None]
            return (widened * scale).to(x.dtype) * weight, scale

        return ops.compute(self.place, "normalize", run, lambda: Memory(2 * size, work=f"norm/normalize{self.ending}"))

    def gradient(self, dy: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Return dx; add the weight's gradient to its sum, if it trains."""
        ops, size, wide = self.context.ops, float(x.nbytes), self.context.master_type
        weight, frozen = self.weight_shard.local, self.weight_shard.frozen
        total: torch.Tensor | None = None
        if self.split:
            products = ops.compute(
                self.place,
                "statistics",
                lambda: torch.linalg.vecdot(dy.to(wide) * weight, x.to(wide) * scale),
                lambda: Memory(2 * size, work="norm/statistics/split"),
                phase="bwd",
            )
            total = self.context.collectives.all_reduce(self.place, "x", products, phase="bwd").wait()

        def run() -> torch.Tensor:
            if total is None and x.is_cuda:
                wanted = [True, not frozen]
                dx, dweight = torch.ops.aten._fused_rms_norm_backward(dy, x, [self.hidden], scale, weight, wanted)
            else:
                dx, dweight = input_gradient(dy.to(wide), x.to(wide), scale, weight, total, self.hidden, frozen=frozen)
            if not frozen:
                self.weight_shard.accumulate(dweight)
            result: torch.Tensor = dx.to(x.dtype)
            return result

        return ops.compute(
            self.place,
            "gradient",
            run,
            lambda: Memory((3 if frozen else 5) * size, work=f"norm/gradient{self.ending}"),
            phase="bwd",
        )


def squared(x: torch.Tensor) -> torch.Tensor:
    """Sum the squares of the last axis."""
    found: torch.Tensor = torch.linalg.vecdot(x, x)
    return found


def reciprocal(squares: torch.Tensor, width: int, epsilon: float) -> torch.Tensor:
    """Return one over the root of the mean square."""
    return torch.rsqrt(squares / width + epsilon)


def input_gradient(
    dy: torch.Tensor,
    x: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    total: torch.Tensor | None,
    width: int,
    *,
    frozen: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of x (…, width) and, summed over all but the last axis, of the weight if it trains.

    `total` is the sum of dy · weight · x̂ over all features, where the ones here are a part of them.
    """
    normalized = x * scale
    dweight = None if frozen else (dy * normalized).flatten(0, -2).sum(0)
    g = dy * weight
    inner = torch.linalg.vecdot(g, normalized) if total is None else total
    return (g - normalized * (inner / width).unsqueeze(-1)) * scale, dweight


class _RmsNorm(torch.autograd.Function):
    """Ties `RmsNorm4D`'s two passes into autograd."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, _weight: torch.Tensor, layer: RmsNorm4D) -> torch.Tensor:
        output, scale = layer.normalize(inputs)
        ctx.save_for_backward(inputs, scale)
        ctx.layer = layer
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        inputs, scale = ctx.saved_tensors
        return ctx.layer.gradient(gradient.contiguous(), inputs, scale), None, None
