"""Norms of a plain model: of the residual stream, and of each head's queries and keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from runtime.model import rms
from runtime.model.context import ModelContext
from runtime.model.narrow_sums import layer_norm
from runtime.model.plain.layers import declare
from runtime.parallel.ops import Place
from runtime.parallel.region import Region
from twin.description.grid import Axis
from twin.schedule.kernels import Memory


class Norm(nn.Module):
    """Layer norm of (m, h)."""

    def __init__(self, context: ModelContext, name: str, place: Place, partial: Axis | None = None) -> None:
        super().__init__()
        model = context.job.model
        self.ops, self.place, self.hidden, self.epsilon = context.ops, place, model.hidden, model.norm_epsilon
        declare(context, f"{name}.weight", self.hidden, constant=1.0, partial=partial)
        if model.norm_biases:
            declare(context, f"{name}.bias", self.hidden, partial=partial)
        self.weight: nn.Parameter
        self.bias: nn.Parameter | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise (m, h)."""

        def run(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
            return layer_norm(x, weight, bias[0] if bias else None, self.epsilon)

        size = float(inputs.nbytes)
        vectors = (self.weight,) if self.bias is None else (self.weight, self.bias)
        return Region(
            self.ops,
            self.place,
            "normalize",
            run,
            lambda: Memory(2 * size, work="norm/normalize"),
            lambda: Memory(3 * size, work="norm/gradient"),
            backward_name="gradient",
        )(inputs, *vectors)


class RmsNorm(nn.Module):
    """RMS norm of (m, h)."""

    def __init__(self, context: ModelContext, name: str, place: Place, partial: Axis | None = None) -> None:
        super().__init__()
        model = context.job.model
        self.ops, self.place, self.epsilon, self.wide = context.ops, place, model.norm_epsilon, context.master_type
        self.passes = rms.passes(context.device_kind)
        declare(context, f"{name}.weight", model.hidden, constant=1.0, partial=partial)
        self.weight: nn.Parameter

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise (m, h)."""
        result: torch.Tensor = _RmsNorm.apply(inputs, self.weight, self)
        return result

    def moved(self, x: torch.Tensor, *, backward: bool) -> float:
        """Bytes that are read and written."""
        return float(self.passes[backward] * x.nbytes)


class _RmsNorm(torch.autograd.Function):
    """RMS norm whose two passes have names."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, layer: RmsNorm) -> torch.Tensor:
        output, scale = layer.ops.compute(
            layer.place,
            "normalize",
            lambda: rms.normalized(inputs, weight, layer.epsilon, layer.wide),
            lambda: Memory(layer.moved(inputs, backward=False), work="norm/normalize"),
        )
        ctx.save_for_backward(inputs, weight, scale)
        ctx.layer = layer
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, weight, scale = ctx.saved_tensors
        layer: RmsNorm = ctx.layer

        def run() -> tuple[torch.Tensor, torch.Tensor | None]:
            return rms.input_gradient(gradient.contiguous(), inputs, scale, weight)

        of_inputs, of_weight = layer.ops.compute(
            layer.place,
            "gradient",
            run,
            lambda: Memory(layer.moved(inputs, backward=True), work="norm/gradient"),
            phase="bwd",
        )
        return of_inputs, None if of_weight is None else of_weight.to(weight.dtype), None


def norm_of(context: ModelContext, name: str, place: Place, partial: Axis | None = None) -> Norm | RmsNorm:
    """Make the norm that the model has; ranks along `partial` see a part of its tokens each."""
    kind = RmsNorm if context.job.model.norm == "rms" else Norm
    return kind(context, name, place, partial)


class HeadNorms(nn.Module):
    """RMS norm of each head's queries and keys, with one weight for all heads of a block.

    The weights belong to `sides`, the block's `q_norm` and `k_norm`.
    """

    def __init__(
        self, context: ModelContext, place: Place, sides: tuple[nn.Module, nn.Module], partial: Axis | None = None
    ) -> None:
        super().__init__()
        model = context.job.model
        self.ops, self.place, self.wide = context.ops, place, context.master_type
        self.passes = rms.passes(context.device_kind)
        self.size, self.epsilon = model.head_size, model.norm_epsilon
        self._sides = sides  # in a tuple, so that their weights have one name only
        for name in ("q_norm", "k_norm"):
            declare(context, f"blocks.{place.layer}.{name}.weight", self.size, constant=1.0, partial=partial)

    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalise both, (m, width) each."""
        q, k = _HeadNorms.apply(queries, keys, *(side.weight for side in self._sides), self)
        return q, k

    def heads(self, part: torch.Tensor) -> torch.Tensor:
        """One row a head, (m · heads, head size), in memory of its own: a part of a wider tensor is copied."""
        return part.reshape(-1, self.size).contiguous()


class _HeadNorms(torch.autograd.Function):
    """Norms of heads whose two passes have names."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: torch.Tensor,
        keys: torch.Tensor,
        of_queries: torch.Tensor,
        of_keys: torch.Tensor,
        layer: HeadNorms,
    ) -> tuple[torch.Tensor, ...]:
        parts, weights = (queries, keys), (of_queries, of_keys)

        def run() -> tuple[list[torch.Tensor], ...]:
            heads = [layer.heads(part) for part in parts]
            found = [rms.normalized(x, w, layer.epsilon, layer.wide) for x, w in zip(heads, weights, strict=True)]
            outputs = [output.view(part.shape) for (output, _), part in zip(found, parts, strict=True)]
            return outputs, heads, [scale for _, scale in found]

        def describe() -> Memory:
            # the copy reads and writes
            each = 2.0 + layer.passes[0]
            return Memory(each * sum(part.nbytes for part in parts), work="norm/normalize")

        outputs, heads, scales = layer.ops.compute(layer.place, "qk_norm", run, describe)
        ctx.save_for_backward(*heads, *scales, *weights)
        ctx.layer = layer
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        heads, scales, weights = (ctx.saved_tensors[at : at + 2] for at in (0, 2, 4))
        layer: HeadNorms = ctx.layer

        def run() -> list[tuple[torch.Tensor, torch.Tensor | None]]:
            found = []
            for d, x, scale, weight in zip(gradients, heads, scales, weights, strict=True):
                dx, dweight = rms.input_gradient(layer.heads(d), x, scale, weight)
                found.append((dx.view(d.shape), None if dweight is None else dweight.to(weight.dtype)))
            return found

        def describe() -> Memory:
            each = layer.passes[1]
            return Memory(float(each * sum(d.nbytes for d in gradients)), work="norm/gradient")

        (dq, of_q), (dk, of_k) = layer.ops.compute(layer.place, "qk_norm", run, describe, phase="bwd")
        return dq, dk, of_q, of_k, None
