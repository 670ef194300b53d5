"""Layers of plain PyTorch: each declares its parameters, names its ops, and leaves gradients to autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from runtime.model.context import ModelContext
from runtime.model.functions import INIT
from runtime.model.narrow_sums import lookup
from runtime.parallel.ops import Ops, Place
from runtime.parallel.region import Region
from runtime.weights.shards import ParameterSpec
from twin.description.grid import Axis
from twin.schedule.kernels import Gemm, Memory


def declare(
    context: ModelContext, name: str, *shape: int, axes: tuple[Axis | None, ...] | None = None, **facts: Any
) -> None:
    """Announce a parameter: matrices decay; where a strategy divides what `axes` leave it divides their rows."""
    cut = context.rows_over
    context.store.declare(
        ParameterSpec(
            name,
            shape,
            axes or (None,) * len(shape),
            cut=cut,
            cut_rows=cut is not None,
            decay=len(shape) == 2,
            only=context.layers_over,
            **facts,
        )
    )


class Linear(nn.Module):
    """A linear layer of n out- and k in-features."""

    def __init__(
        self,
        context: ModelContext,
        name: str,
        place: Place,
        n: int,
        k: int,
        *,
        bias: bool,
        init: float,
        also: str | None = None,
    ) -> None:
        super().__init__()
        self.ops, self.place, self.products = context.ops, place, context.products
        self.declare(context, name, n, k, bias=bias, init=init, also=also)
        self.weight: nn.Parameter
        self.bias: nn.Parameter | None = None

    def declare(
        self, context: ModelContext, name: str, n: int, k: int, *, bias: bool, init: float, also: str | None
    ) -> None:
        """Announce weight and bias."""
        declare(context, f"{name}.weight", n, k, init=init, also=also)
        if bias:
            declare(context, f"{name}.bias", n)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (m, k) to (m, n)."""
        return self.product(inputs, self.bias)

    def product(self, inputs: torch.Tensor, bias: torch.Tensor | None, *, skip: bool = False) -> torch.Tensor:
        """Multiply, and add a bias; `skip`: nobody reads the result, which matters to the backward pass alone."""
        # heard or not: DDP fills its buckets in the order in which gradients come
        result: torch.Tensor = _Linear.apply(inputs, self.weight, bias, self, skip)
        return result

    def taken(self, weight_gradient: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        """Compute the weight's gradient (n, k), for autograd to add; None where somebody else does."""
        return weight_gradient()


class _Linear(torch.autograd.Function):
    """A linear layer whose three products have names."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, layer: Linear, skip: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.layer, ctx.adds = layer, bias is not None
        (m, k), n, e = inputs.shape, weight.shape[0], inputs.element_size()
        if skip:
            return inputs.new_empty(m, n)
        product: torch.Tensor = layer.ops.compute(
            layer.place,
            "gemm",
            lambda: layer.products.multiply(inputs, weight.t(), bias=bias),
            lambda: Gemm(m, n, k, "TN", element_bytes=e),
        )
        return product

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        layer: Linear = ctx.layer
        (m, k), n, e = inputs.shape, weight.shape[0], inputs.element_size()

        def weight_gradient() -> torch.Tensor:
            def run() -> torch.Tensor:
                return layer.products.multiply(gradient.t(), inputs)

            product = Gemm(n, k, m, "NT", element_bytes=e)
            return layer.ops.compute(layer.place, "weight_gradient", run, lambda: product, phase="bwd")

        of_weight = layer.taken(weight_gradient)
        of_input = layer.ops.compute(
            layer.place,
            "input_gradient",
            lambda: layer.products.multiply(gradient, weight),
            lambda: Gemm(m, k, n, "NN", element_bytes=e),
            phase="bwd",
        )
        of_bias = bias_gradient(layer.ops, layer.place, gradient) if ctx.adds else None
        return of_input, of_weight, of_bias, None, None


def bias_gradient(ops: Ops, place: Place, gradient: torch.Tensor) -> torch.Tensor:
    """Sum a gradient (m, n) over tokens."""
    moved = Memory(float(gradient.nbytes), work="bias_gradient")
    return ops.compute(place, "bias_gradient", lambda: gradient.sum(0), lambda: moved, phase="bwd")


class Embedding(nn.Module):
    """Looks up tokens, and adds learned positions if there are any; with tied embeddings the table is the head's."""

    def __init__(self, context: ModelContext) -> None:
        super().__init__()
        model = context.job.model
        self.context, self.place = context, Place("embedding")
        if not model.tied_embeddings:
            declare(context, "embedding.tokens", model.vocabulary, model.hidden, init=INIT)
        if model.positions == "learned":
            declare(context, "embedding.positions", model.position_rows, model.hidden, init=INIT)
        self.tokens: nn.Parameter
        self.positions: nn.Parameter | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens (sequences, s) to (sequences · s, h)."""
        documents = self.context.documents

        def run(table: torch.Tensor, *positions: torch.Tensor) -> torch.Tensor:
            found = lookup(tokens, table)
            for rows in positions:
                if documents is not None:
                    found = found + lookup(documents.positions, rows)
                else:
                    found = found + self.rows(rows, tokens.shape[1])
            # the same memory in another shape, but no view, of which FSDP2 warns
            flat: torch.Tensor = torch.ops.aten._unsafe_view(found, [tokens.numel(), table.shape[1]])
            return flat

        tables = [self.tokens] if self.positions is None else [self.tokens, self.positions]
        size = float(tokens.numel() * self.tokens.shape[1] * self.tokens.element_size())

        def backward() -> Memory:
            return Memory(len(tables) * size + sum(t.nbytes for t in tables), work="embedding/gradient")

        passes = 2.0
        if self.positions is not None:  # a position's row serves all sequences, unless documents look theirs up
            passes += 2 + 1 / tokens.shape[0] if documents is None else 5
        return Region(
            self.context.ops,
            self.place,
            "lookup",
            run,
            lambda: Memory(passes * size, work="embedding/lookup"),
            backward,
            backward_name="gradient",
        )(*tables)

    def rows(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Return the rows of the positions of so many tokens."""
        # a part of the rows would get its gradient in a copy of all
        return positions if positions.shape[0] == length else positions[:length]
