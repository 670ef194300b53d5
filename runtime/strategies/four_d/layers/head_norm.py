"""RMS norm of each head's queries and keys (Qwen3), with one weight for all heads of a block.

No axis splits a head, so nothing is communicated for an activation. A rank sees the heads of its y coordinate
alone: the weights' gradients are summed over y at the end of the step.
"""

from __future__ import annotations

from typing import Any

import torch

from runtime.model.rms import input_gradient, normalized, passes
from runtime.parallel.ops import Place
from runtime.strategies.four_d.context import FourDContext
from runtime.weights.shards import ParameterSpec
from runtime.weights.store import Parameter
from twin.schedule.kernels import Memory


class HeadNorms(torch.nn.Module):
    """Normalises queries and keys, (m, width) each, whose heads lie side by side."""

    def __init__(self, context: FourDContext, place: Place) -> None:
        super().__init__()
        model = context.job.model
        self.context, self.place = context, place
        self.size, self.epsilon = model.head_size, model.norm_epsilon
        self.passes = passes(context.device_kind)

        def declare(name: str) -> Parameter:
            spec = ParameterSpec(
                f"blocks.{place.layer}.{name}.weight", (self.size,), (None,), constant=1.0, partial="y"
            )
            return context.store.declare(spec)

        self.weights = declare("q_norm"), declare("k_norm")
        self.sides = torch.nn.Module(), torch.nn.Module()
        """What carries the two weights in the block, under their names in the full model."""

    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalise both."""
        q, k = _HeadNorms.apply(queries, keys, *(w.weight for w in self.weights), self)
        return q, k

    def _heads(self, part: torch.Tensor) -> torch.Tensor:
        """One row a head, (m · heads, head size), in memory of its own: a part of a wider tensor is copied."""
        return part.reshape(-1, self.size).contiguous()

    def normalize(self, *parts: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Of queries and of keys: result (m, width), their heads, and the heads' reciprocal roots of mean squares."""
        wide = self.context.master_type

        def run() -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
            found = []
            for part, weight in zip(parts, self.weights, strict=True):
                heads = self._heads(part)
                output, scale = normalized(heads, weight.local, self.epsilon, wide)
                found.append((output.view(part.shape), heads, scale))
            return found

        def describe() -> Memory:
            # the copy reads and writes
            return Memory((2.0 + self.passes[0]) * sum(part.nbytes for part in parts), work="norm/normalize")

        return self.context.ops.compute(self.place, "qk_norm", run, describe)

    def gradient(
        self, gradients: tuple[torch.Tensor, ...], heads: tuple[torch.Tensor, ...], scales: tuple[torch.Tensor, ...]
    ) -> list[torch.Tensor]:
        """Return the gradients of queries and keys; add the weights' gradients to their sums."""

        def run() -> list[torch.Tensor]:
            found = []
            for weight, d, x, scale in zip(self.weights, gradients, heads, scales, strict=True):
                dx, dweight = input_gradient(self._heads(d), x, scale, weight.local, frozen=weight.frozen)
                if dweight is not None:
                    weight.accumulate(dweight)
                found.append(dx.view(d.shape))
            return found

        def describe() -> Memory:
            return Memory(float(self.passes[1] * sum(d.nbytes for d in gradients)), work="norm/gradient")

        return self.context.ops.compute(self.place, "qk_norm", run, describe, phase="bwd")


class _HeadNorms(torch.autograd.Function):
    """Ties `HeadNorms`'s two passes into autograd."""

    @staticmethod
    def forward(
        ctx: Any, queries: torch.Tensor, keys: torch.Tensor, _q: torch.Tensor, _k: torch.Tensor, layer: HeadNorms
    ) -> tuple[torch.Tensor, ...]:
        outputs, heads, scales = zip(*layer.normalize(queries, keys), strict=True)
        ctx.save_for_backward(*heads, *scales)
        ctx.layer = layer
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        heads, scales = ctx.saved_tensors[:2], ctx.saved_tensors[2:]
        return (*ctx.layer.gradient(gradients, heads, scales), None, None, None)
