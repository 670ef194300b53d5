"""RMS norm of each head's queries and keys (Qwen3), with one weight for all heads of a block.

No axis splits a head, so nothing is communicated for an activation. A rank sees the heads of its y coordinate
alone: the weights' gradients are summed over y at the end of the step.
"""

from __future__ import annotations

from typing import Any

import torch

from runtime.parallel.ops import Place
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.layers.rms_norm import input_gradient, reciprocal, squared
from runtime.weights.shards import ParameterSpec
from runtime.weights.store import Parameter
from twin.schedule.kernels import Memory

Widths = tuple[int, int, int]


class HeadNorms(torch.nn.Module):
    """Normalises queries and keys in the packed (m, queries + keys + values)."""

    def __init__(self, context: FourDContext, place: Place, widths: Widths) -> None:
        super().__init__()
        model = context.job.model
        self.context, self.place, self.widths = context, place, widths
        self.size, self.epsilon = model.head_size, model.norm_epsilon

        def declare(name: str) -> Parameter:
            spec = ParameterSpec(
                f"blocks.{place.layer}.{name}.weight", (self.size,), (None,), constant=1.0, partial="y"
            )
            return context.store.declare(spec)

        self.weights = declare("q_norm"), declare("k_norm")
        self.sides = torch.nn.Module(), torch.nn.Module()
        """What carries the two weights in the block, under their names in the full model."""

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """Normalise queries and keys, pass values through."""
        result: torch.Tensor = _HeadNorms.apply(packed, *(w.weight for w in self.weights), self)
        return result

    def _moved(self, packed: torch.Tensor) -> float:
        return float(packed.shape[0] * sum(self.widths[:2]) * packed.element_size())

    def normalize(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the packed result, and each head's reciprocal root of its mean square, of queries and of keys."""
        wide = self.context.master_type

        def run() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            *both, values = packed.split(self.widths, 1)
            outputs, scales = [], []
            for part, weight in zip(both, self.weights, strict=True):
                heads = part.unflatten(1, (-1, self.size)).to(wide)
                scale = reciprocal(squared(heads), self.size, self.epsilon).unsqueeze(-1)
                outputs.append(((heads * scale).to(packed.dtype) * weight.local).flatten(1))
                scales.append(scale)
            return torch.cat((*outputs, values), 1), scales[0], scales[1]

        return self.context.ops.compute(
            self.place, "qk_norm", run, lambda: Memory(2 * self._moved(packed), work="norm/normalize")
        )

    def gradient(self, dy: torch.Tensor, packed: torch.Tensor, scales: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the gradient of what was packed; add the weights' gradients to their sums."""
        wide = self.context.master_type

        def run() -> torch.Tensor:
            *gradients, dvalues = dy.split(self.widths, 1)
            *inputs, _ = packed.split(self.widths, 1)
            outputs = []
            for weight, d, x, scale in zip(self.weights, gradients, inputs, scales, strict=True):
                dh, xh = (part.unflatten(1, (-1, self.size)).to(wide) for part in (d, x))
                dx, dweight = input_gradient(dh, xh, scale, weight.local, None, self.size, frozen=weight.frozen)
                if dweight is not None:
                    weight.accumulate(dweight)
                outputs.append(dx.to(dy.dtype).flatten(1))
            return torch.cat((*outputs, dvalues), 1)

        passes = 3 if self.weights[0].frozen else 5
        return self.context.ops.compute(
            self.place, "qk_norm", run, lambda: Memory(passes * self._moved(packed), work="norm/gradient"), phase="bwd"
        )


class _HeadNorms(torch.autograd.Function):
    """Ties `HeadNorms`'s two passes into autograd."""

    @staticmethod
    def forward(ctx: Any, packed: torch.Tensor, _q: torch.Tensor, _k: torch.Tensor, layer: HeadNorms) -> torch.Tensor:
        output, *scales = layer.normalize(packed)
        ctx.save_for_backward(packed, *scales)
        ctx.layer = layer
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        packed, *scales = ctx.saved_tensors
        return ctx.layer.gradient(gradient.contiguous(), packed, tuple(scales)), None, None, None
