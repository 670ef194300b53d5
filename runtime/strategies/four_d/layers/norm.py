"""Layer norm over features that are split over x.

Each rank sums over its features; one all-reduce of two numbers per token makes mean and variance
those of the full width, forward and backward. On one x rank it is PyTorch's own kernel.
Sum and sum of squares are taken in one pass, in fp32 or wider: their relative error grows with
(mean / deviation)², which is far below one in a residual stream.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from runtime.model.narrow_sums import norm_gradient
from runtime.parallel.ops import Place
from runtime.strategies.four_d.again import Again
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
        self.split = context.grid.x > 1
        """Whether features are split at all."""
        self.weight_shard = context.store.declare(ParameterSpec(f"{name}.weight", (hidden,), ("x",), constant=1.0))
        self.bias_shard: Parameter | None = None
        if bias:
            self.bias_shard = context.store.declare(ParameterSpec(f"{name}.bias", (hidden,), ("x",)))

    def forward(self, inputs: torch.Tensor, again: Again | None = None) -> torch.Tensor:
        """Normalise (m, h/G_x); `again` is told how that is done a second time."""
        result: torch.Tensor = _Norm.apply(inputs, self.weight_shard.weight, self, again)
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
            self.place,
            "statistics",
            lambda: _sums(x, self.context.master_type),
            lambda: Memory(2 * size, work="norm/statistics/split"),
        )
        total = self.context.collectives.all_reduce(self.place, "x", statistics).wait()
        return ops.compute(
            self.place,
            "normalize",
            lambda: _apply(x, total, weight, bias, self.hidden, self.epsilon),
            lambda: Memory(4 * size, work="norm/normalize/split"),
        )

    def normalize_again(self, x: torch.Tensor, *statistics: torch.Tensor) -> torch.Tensor:
        """Return the output from what is kept for the gradient, the input and its statistics."""
        if not self.split:
            return self.normalize(x)[0]
        weight, bias = self.parameters_local()
        return self.context.ops.compute(
            self.place,
            "normalize",
            lambda: _applied(x, statistics, weight, bias),
            lambda: Memory(4.0 * x.nbytes, work="norm/normalize/split"),
        )

    def gradient(self, dy: torch.Tensor, x: torch.Tensor, *statistics: torch.Tensor) -> torch.Tensor:
        """Return dx; add the vectors' gradients to their sums, if they train. `statistics` are mean and deviation."""
        mean, rstd = statistics
        ops, size, frozen = self.context.ops, float(x.nbytes), self.weight_shard.frozen
        weight, bias = self.parameters_local()
        sums: tuple[torch.Tensor, torch.Tensor] | None = None
        if self.split:
            here = ops.compute(
                self.place,
                "statistics",
                lambda: _gradient_sums(dy, x, mean, rstd, weight),
                lambda: Memory(5 * size, work="norm/statistics/split"),
                phase="bwd",
            )
            sums = here, self.context.collectives.all_reduce(self.place, "x", here.clone(), phase="bwd").wait()
            weight, bias = suited(weight, mean), None if bias is None else suited(bias, mean)

        def gradient() -> torch.Tensor:
            wanted = (True, not frozen, bias is not None and not frozen)
            dx, dweight, dbias = norm_gradient(dy, x, mean, rstd, (weight, bias), wanted)
            for shard, found in ((self.weight_shard, dweight), (self.bias_shard, dbias)):
                if shard is not None and found is not None:
                    shard.accumulate(found)
            return dx if sums is None else _complete(dx, x, (mean, rstd), sums, self.hidden)

        passes, ending = (8, "/split") if self.split else (3, "")
        return ops.compute(
            self.place, "gradient", gradient, lambda: Memory(passes * size, work=f"norm/gradient{ending}"), phase="bwd"
        )


def suited(vector: torch.Tensor, statistics: torch.Tensor) -> torch.Tensor:
    """Return a weight or bias in the type that PyTorch's kernel wants beside such statistics: on CPUs in theirs."""
    return vector.to(statistics.dtype) if vector.device.type == "cpu" else vector


def _sums(x: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """Sum and sum of squares of each token: (2, m)."""
    return torch.stack((x.sum(1, dtype=wide), torch.linalg.vector_norm(x, dim=1, dtype=wide).square_()))


def _apply(
    x: torch.Tensor, sums: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, hidden: int, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalise in two kernels: by each token's numbers, then by each feature's."""
    mean = sums[0] / hidden
    variance = (sums[1] / hidden - mean * mean).clamp_min_(0.0)
    rstd = torch.rsqrt(variance + epsilon)
    mean, rstd = mean[:, None], rstd[:, None]
    return _applied(x, (mean, rstd), weight, bias), mean, rstd


def _applied(
    x: torch.Tensor, statistics: tuple[torch.Tensor, ...], weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Normalise by mean and reciprocal standard deviation (m, 1)."""
    mean, rstd = statistics
    y = torch.addcmul(-mean * rstd, x, rstd, out=torch.empty_like(x))
    if bias is None:
        y.mul_(weight)
    else:
        torch.addcmul(bias, y, weight, out=y)
    return y


def _gradient_sums(
    dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """Sums over features of g = dy·w and of g·x̂, for each token: (2, m)."""
    of_g = (dy @ weight).to(mean.dtype)
    of_gx = ((dy * x) @ weight).to(mean.dtype)
    return torch.stack((of_g, (of_gx - mean[:, 0] * of_g) * rstd[:, 0]))


def _complete(
    dx: torch.Tensor,
    x: torch.Tensor,
    statistics: tuple[torch.Tensor, torch.Tensor],
    sums: tuple[torch.Tensor, torch.Tensor],
    hidden: int,
) -> torch.Tensor:
    """Make of the gradient that takes this rank's features for all of them the one of all features, in place.

    The kernel subtracted the means of g and of g·x̂ over the features here; those over all are `sums` by their
    count. `statistics` are mean and reciprocal standard deviation (m, 1), `sums` those of `_gradient_sums`,
    here and over all ranks.
    """
    mean, rstd = statistics
    here, everywhere = sums
    constant, slope = (here / x.shape[1] - everywhere / hidden)[:, :, None] * rstd
    slope = slope * rstd
    return dx.addcmul_(x, slope).add_(constant - slope * mean)


class _Norm(torch.autograd.Function):
    """Ties `Norm4D`'s two passes into autograd."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, _weight: torch.Tensor, layer: Norm4D, again: Again | None
    ) -> torch.Tensor:
        output, mean, rstd = layer.normalize(inputs)
        if again is not None:
            again.by(partial(layer.normalize_again, inputs.detach(), mean, rstd))
        ctx.save_for_backward(inputs, mean, rstd)
        ctx.layer = layer
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        inputs, mean, rstd = ctx.saved_tensors
        return ctx.layer.gradient(gradient.contiguous(), inputs, mean, rstd), None, None, None
