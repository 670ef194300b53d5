"""RMS norm over features that are split over x: one all-reduce of one number per token, each way.

x · rsqrt(mean(x²) + ε) is rounded to the type of x before it is multiplied by the weight, as everywhere in
the field. On one x rank it is what every strategy computes (`runtime.model.rms`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from runtime.model.rms import input_gradient, normalized, passes, reciprocal, scaled, squared
from runtime.parallel.ops import Place
from runtime.strategies.four_d.again import Again
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
        self.passes = passes(context.device_kind)
        self.split = context.grid.x > 1
        self.ending = "/split" if self.split else ""

    def forward(self, inputs: torch.Tensor, again: Again | None = None) -> torch.Tensor:
        """Normalise (m, h/G_x); `again` is told how that is done a second time."""
        result: torch.Tensor = _RmsNorm.apply(inputs, self.weight_shard.weight, self, again)
        return result

    def normalize(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output and reciprocal root of the mean square, (m, 1)."""
        ops, size, wide = self.context.ops, float(x.nbytes), self.context.master_type
        weight = self.weight_shard.local
        if not self.split:
            return ops.compute(
                self.place,
                "normalize",
                lambda: normalized(x, weight, self.epsilon, wide),
                lambda: Memory(self.passes[0] * size, work="norm/normalize"),
            )
        squares = ops.compute(
            self.place, "statistics", lambda: squared(x, wide), lambda: Memory(size, work="norm/statistics/split")
        )
        total = self.context.collectives.all_reduce(self.place, "x", squares).wait()

        def run() -> tuple[torch.Tensor, torch.Tensor]:
            scale = reciprocal(total, self.hidden, self.epsilon)
            return scaled(x, scale, weight), scale

        return ops.compute(self.place, "normalize", run, lambda: Memory(4 * size, work="norm/normalize/split"))

    def normalize_again(self, x: torch.Tensor, *statistics: torch.Tensor) -> torch.Tensor:
        """Return the output from what is kept for the gradient, the input and its reciprocal root."""
        if not self.split:
            return self.normalize(x)[0]
        (scale,) = statistics
        weight = self.weight_shard.local
        return self.context.ops.compute(
            self.place,
            "normalize",
            lambda: scaled(x, scale, weight),
            lambda: Memory(4.0 * x.nbytes, work="norm/normalize/split"),
        )

    def gradient(self, dy: torch.Tensor, x: torch.Tensor, *statistics: torch.Tensor) -> torch.Tensor:
        """Return dx; add the weight's gradient to its sum, if it trains. `statistics` is the reciprocal root."""
        (scale,) = statistics
        ops, size = self.context.ops, float(x.nbytes)
        weight, frozen = self.weight_shard.local, self.weight_shard.frozen
        here = total = None
        if self.split:
            here = ops.compute(
                self.place,
                "statistics",
                lambda: ((dy * x) @ weight).to(scale.dtype)[:, None] * scale,
                lambda: Memory(4 * size, work="norm/statistics/split"),
                phase="bwd",
            )
            total = self.context.collectives.all_reduce(self.place, "x", here.clone(), phase="bwd").wait()

        def run() -> torch.Tensor:
            dx, dweight = input_gradient(dy, x, scale, weight, frozen=frozen)
            if dweight is not None:
                self.weight_shard.accumulate(dweight)
            if here is not None and total is not None:
                # the kernel took the features here for all of them
                dx.addcmul_(x, (here / x.shape[1] - total / self.hidden) * scale * scale)
            return dx

        more = 3 if self.split else 0
        return ops.compute(
            self.place,
            "gradient",
            run,
            lambda: Memory((self.passes[1] + more) * size, work=f"norm/gradient{self.ending}"),
            phase="bwd",
        )


class _RmsNorm(torch.autograd.Function):
    """Ties `RmsNorm4D`'s two passes into autograd."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, _weight: torch.Tensor, layer: RmsNorm4D, again: Again | None
    ) -> torch.Tensor:
        output, scale = layer.normalize(inputs)
        if again is not None:
            again.by(partial(layer.normalize_again, inputs.detach(), scale))
        ctx.save_for_backward(inputs, scale)
        ctx.layer = layer
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        inputs, scale = ctx.saved_tensors
        return ctx.layer.gradient(gradient.contiguous(), inputs, scale), None, None, None
