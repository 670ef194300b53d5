"""Layer norm over features that are split over x.

Each rank sums over its features; one all-reduce of two numbers per token makes mean and variance
those of the full width, forward and backward. On one x rank it is PyTorch's own kernel.
Sum and sum of squares are taken in one pass, in fp32 or wider: their relative error grows with
(mean / deviation)², which is far below one in a residual stream.
"""

from __future__ import annotations

from typing import Any

import torch

from runtime.parallel.ops import Place
from runtime.strategies.four_d.context import FourDContext
from runtime.weights.shards import ParameterSpec
from runtime.weights.store import Parameter
from twin.schedule.kernels import Memory


class Norm4D(torch.nn.Module):
    """Layer norm of (m, h/G_x), replicated over y."""

    def __init__(self, context: FourDContext, name: str, place: Place, hidden: int, *, bias: bool) -> None:
        super().__init__()
        self.context, self.place, self.hidden = context, place, hidden
        self.epsilon = context.job.model.norm_epsilon
        self.weight_shard = context.store.declare(ParameterSpec(f"{name}.weight", (hidden,), ("x",), constant=1.0))
        self.bias_shard: Parameter | None = None
        if bias:
            self.bias_shard = context.store.declare(ParameterSpec(f"{name}.bias", (hidden,), ("x",)))

    @property
    def split(self) -> bool:
        """Whether features are split at all."""
        return self.context.grid.x > 1

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise (m, h/G_x)."""
        result: torch.Tensor = _Norm.apply(inputs, self.weight_shard.weight, self)
        return result

    def parameters_local(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias (h/G_x,)."""
        return self.weight_shard.local, self.bias_shard.local if self.bias_shard else None

    def normalize(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return output, mean (m, 1) and reciprocal standard deviation (m, 1)."""
        weight, bias = self.parameters_local()
        ops = self.context.ops
        size = float(x.nbytes)
        if not self.split:
            return ops.compute(
                self.place,
                "normalize",
                lambda: torch.native_layer_norm(x, [self.hidden], weight, bias, self.epsilon),
                lambda: Memory(2 * size, work="norm/normalize"),
            )
        statistics = ops.compute(
            self.place, "statistics", lambda: _sums(x, self._wide), lambda: Memory(size, work="norm/statistics/split")
        )
        total = self.context.collectives.all_reduce(self.place, "x", statistics).wait()
        return ops.compute(
            self.place,
            "normalize",
            lambda: _apply(x, total, weight, bias, self.hidden, self.epsilon),
            lambda: Memory(2 * size, work="norm/normalize/split"),
        )

    @property
    def _wide(self) -> torch.dtype:
        return self.context.master_type

    def gradient(self, dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
        """Return dx; add the vectors' gradients to their sums, if they train."""
        ops, size, frozen = self.context.ops, float(x.nbytes), self.weight_shard.frozen
        weight, bias = self.parameters_local()
        total: torch.Tensor | None = None
        if self.split:
            sums = ops.compute(
                self.place,
                "statistics",
                lambda: _gradient_sums(dy, x, mean, rstd, weight, self._wide),
                lambda: Memory(2 * size, work="norm/statistics/split"),
                phase="bwd",
            )
            total = self.context.collectives.all_reduce(self.place, "x", sums, phase="bwd").wait()

        def gradient() -> torch.Tensor:
            if total is None:
                dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
                    dy, x, [self.hidden], mean, rstd, weight, bias, [True, not frozen, bias is not None and not frozen]
                )
            else:
                dx, dweight, dbias = _input_gradient(dy, x, mean, rstd, weight, total, self.hidden, frozen=frozen)
            if not frozen:
                self.weight_shard.accumulate(dweight)
                if self.bias_shard is not None:
                    self.bias_shard.accumulate(dbias)
            result: torch.Tensor = dx
            return result

        return ops.compute(
            self.place,
            "gradient",
            gradient,
            lambda: Memory((3 if frozen else 5) * size, work="norm/gradient/split" if self.split else "norm/gradient"),
            phase="bwd",
        )


def _sums(x: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """Sum and sum of squares of each token: (2, m)."""
    x = x.to(wide)
    return torch.stack((x.sum(1), torch.linalg.vecdot(x, x)))


def _apply(
    x: torch.Tensor, sums: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, hidden: int, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean = sums[0] / hidden
    variance = (sums[1] / hidden - mean * mean).clamp_min_(0.0)
    rstd = torch.rsqrt(variance + epsilon)
    mean, rstd = mean[:, None], rstd[:, None]
    y = (x - mean) * rstd * weight
    if bias is not None:
        y = y + bias
    return y.to(x.dtype), mean, rstd


def _gradient_sums(
    dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor, wide: torch.dtype
) -> torch.Tensor:
    """Sums over features of g = dy·w and of g·x̂, for each token: (2, m)."""
    g = dy.to(wide) * weight
    normalized = (x.to(wide) - mean) * rstd
    return torch.stack((g.sum(1), torch.linalg.vecdot(g, normalized)))


def _input_gradient(
    dy: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    sums: torch.Tensor,
    hidden: int,
    *,
    frozen: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    wide = sums.dtype
    dy_wide = dy.to(wide)
    normalized = (x.to(wide) - mean) * rstd
    dweight, dbias = (None, None) if frozen else ((dy_wide * normalized).sum(0), dy_wide.sum(0))
    g = dy_wide * weight
    dx = (g - (sums[0] / hidden)[:, None] - normalized * (sums[1] / hidden)[:, None]) * rstd
    return dx.to(x.dtype), dweight, dbias


class _Norm(torch.autograd.Function):
    """Ties `Norm4D`'s two passes into autograd."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, _weight: torch.Tensor, layer: Norm4D) -> torch.Tensor:
        output, mean, rstd = layer.normalize(inputs)
        ctx.save_for_backward(inputs, mean, rstd)
        ctx.layer = layer
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        inputs, mean, rstd = ctx.saved_tensors
        return ctx.layer.gradient(gradient.contiguous(), inputs, mean, rstd), None, None
