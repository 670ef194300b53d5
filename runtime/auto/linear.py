"""An `nn.Linear` cut over the grid, with full features at its edges.

W[n, k] of a layer with contraction axis c and output axis o lies on a rank as a block W[n_o, k_c],
flattened and cut over z. Rows m are those of this (data, z) coordinate, equal over x and y:

    forward   O[m, n_o] = all_reduce_c( I[m, k_c] · W[n_o, k_c]ᵀ )     I is sliced, O gathered over o
    backward  dI[m, k_c] = all_reduce_o( dO[m, n_o] · W[n_o, k_c] )    dO is sliced, dI gathered over c
              dW[n_o, k_c] = reduce_scatter_z( dO[m, n_o]ᵀ · I[m, k_c] ) / G_z

* Slices cost nothing, for the full features are there.
* The bias is added to the full output, outside of all this: it is a serial parameter like any
  other, and autograd's gradient of it is right on every grid.
* Under autocast weights are gathered in its precision; gradients are summed in the parameter's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from runtime.auto.arrivals import Token
from runtime.auto.context import AutoContext
from runtime.auto.use import Use
from runtime.parallel.mesh import Communicator
from runtime.parallel.ops import Place
from runtime.strategies.four_d.gemm import Pass
from runtime.weights.shards import Shard
from twin.schedule.ops import Phase


@dataclass(eq=False)
class LayerCut:
    """The cut of one layer, and the products and collectives of its two passes."""

    context: AutoContext
    place: Place
    shard: Shard
    run: Callable[[ParallelLinear, torch.Tensor], torch.Tensor]
    """The function `run`, which torch.compile must step around: it cannot trace collectives."""

    def communicator(self, dim: int) -> Communicator | None:
        """What to reduce or gather over for dim 0 (output) or 1 (contraction); None if uncut."""
        axis = self.shard.spec.axes[dim]
        assert axis in ("x", "y")
        return axis if self.context.mesh.grid.size(axis) > 1 else None

    def slice(self, features: torch.Tensor, dim: int) -> torch.Tensor:
        """Take this rank's features of (m, n) for dim 0, of (m, k) for dim 1: a view."""
        axis = self.communicator(dim)
        if axis is None:
            return features
        assert axis in ("x", "y")
        width = self.shard.local_shape[dim]
        return features.narrow(1, width * self.context.mesh.coordinates[axis], width)

    def gather(self, part: torch.Tensor, dim: int, phase: Phase) -> torch.Tensor:
        """Put the features (m, n/G_o) or (m, k/G_c) of all ranks side by side."""
        axis = self.communicator(dim)
        if axis is None or not part.numel():
            return part if axis is None else part.new_empty(len(part), self.shard.spec.shape[dim])
        handle = self.context.collectives.all_gather(self.place, axis, part.reshape(-1), phase=phase)
        return handle.wait().view(-1, *part.shape).transpose(0, 1).flatten(1)

    def product(self, pass_: Pass, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Multiply under a name: a (m, k) by b (k, n)."""
        return self.context.ops.compute(
            self.place,
            "gemm" if pass_ == "forward" else pass_,
            lambda: self.context.gemms.product(pass_, a, b),
            lambda: self.context.gemms.kernel(pass_, a, b),
            phase=None if pass_ == "forward" else "bwd",
        )

    def forward(self, inputs: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        """Map (m, k) to (m, n)."""
        output = self.product("forward", self.slice(inputs, 1), block.t())
        if (over := self.communicator(1)) and output.numel():
            self.context.collectives.all_reduce(self.place, over, output).wait()
        return self.gather(output, 0, "fwd")

    def backward(
        self, inputs: torch.Tensor, gradient: torch.Tensor, use: Use, token: Token | None, *, need_weight: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Map dO (m, n) to dI (m, k), if the use needs it, and to the gradient of the shard."""
        gradient, inputs = self.slice(gradient, 0), self.slice(inputs, 1)

        def weight_gradient() -> torch.Tensor | None:
            if not need_weight:
                return None
            product = self.product("weight_gradient", gradient.t(), inputs)
            return self._scatter(product.to(use.layer.weight.dtype), use, token)

        if not use.needs_block:
            return None, weight_gradient()
        block = self.context.gathers.backward(use)
        over = self.communicator(0)
        if over is None or not gradient.numel():  # nothing to hide: scatter earlier instead
            scattered = weight_gradient()
            partial = self.product("input_gradient", gradient, block)
            return self.gather(partial, 1, "bwd"), scattered
        partial = self.product("input_gradient", gradient, block)
        reduced = self.context.collectives.all_reduce(self.place, over, partial, phase="bwd")
        if not self.context.overlap:
            reduced.wait()
        scattered = weight_gradient()
        if self.context.overlap:
            reduced.wait()
        return self.gather(partial, 1, "bwd"), scattered

    def _scatter(self, product: torch.Tensor, use: Use, token: Token | None) -> torch.Tensor:
        """Average dW (n/G_o, k/G_c) over z; returns this rank's part, or what stands for it in flight."""
        flat = product.reshape(-1)
        if self.context.mesh.grid.size("z") == 1:
            return flat
        if padding := self.shard.gathered - flat.numel():
            flat = torch.nn.functional.pad(flat, (0, padding))
        handle = self.context.collectives.reduce_scatter(self.place, "z_scatter", flat, phase="bwd")
        # the mean over z here and now: what else is in the weight's gradient needs no factor, and is not summed
        return handle.wait().div_(self.context.mesh.grid.size("z")) if token is None else token.post(use, handle)


def _layout(use: Use) -> LayerCut:
    layout = use.layer.layout
    assert isinstance(layout, LayerCut)
    return layout


class ParallelLinear(torch.nn.Linear):
    """What `auto_parallelize` makes of an `nn.Linear`, in place.

    `weight` is this rank's flat shard, `bias` the full bias. Input and output are as before.
    """

    layout: LayerCut
    weight: torch.nn.Parameter

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  nn.Linear's name for it
        """Map (…, k) to (…, n); raises ValueError for another number of features."""
        return self.layout.run(self, input)

    def extra_repr(self) -> str:
        """Add how the weight is cut."""
        out, contraction = self.layout.shard.spec.axes
        return f"{super().extra_repr()}, features over {contraction} → {out}, weight over z"


def run(layer: ParallelLinear, inputs: torch.Tensor) -> torch.Tensor:
    """Run a layer: the forward pass proper."""
    if inputs.shape[-1] != layer.in_features:
        raise ValueError(
            f"{layer.layout.place.path}: the input has {inputs.shape[-1]} features, "
            f"shape {tuple(inputs.shape)}; expected {layer.in_features}"
        )
    context, dtype = layer.layout.context, computed_in(inputs, layer.weight)
    rows = inputs.reshape(-1, layer.in_features).to(dtype)
    enabled = torch.is_grad_enabled()
    needs_block = enabled and rows.requires_grad
    block, use = context.gathers.forward(layer, dtype, needs_block=needs_block)
    if needs_block or (enabled and layer.weight.requires_grad):
        token = context.arrivals.token(layer)
        weight = layer.weight if token is None else token.weight
        output: torch.Tensor = _Product.apply(rows, weight, block, use, token)
    else:
        with torch.autocast(inputs.device.type, enabled=False):
            output = layer.layout.forward(rows, block)
    output = output.view(*inputs.shape[:-1], layer.out_features)
    return output if layer.bias is None else output + layer.bias.to(output.dtype)


def computed_in(inputs: torch.Tensor, weight: torch.Tensor) -> torch.dtype:
    """Return the precision of a product, by the rules of autocast: it leaves float64 alone."""
    kind = inputs.device.type
    if torch.is_autocast_enabled(kind) and torch.float64 not in (inputs.dtype, weight.dtype):
        return torch.get_autocast_dtype(kind)
    if inputs.dtype != weight.dtype:
        raise ValueError(
            f"the input is {inputs.dtype} and the weight {weight.dtype}; convert one of them, or use torch.autocast"
        )
    return weight.dtype


class _Product(torch.autograd.Function):
    """Ties the two passes into autograd. The block is not saved: backward gathers it again."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, block: torch.Tensor, use: Use, token: Token | None
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)  # the weight so that autograd sees if it is changed
        ctx.use, ctx.token = use, token
        with torch.autocast(rows.device.type, enabled=False):
            return _layout(use).forward(rows, block)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, _ = ctx.saved_tensors
        with torch.autocast(rows.device.type, enabled=False):
            inputs, weight = _layout(ctx.use).backward(
                rows, gradient, ctx.use, ctx.token, need_weight=ctx.needs_input_grad[1]
            )
        return inputs, weight, None, None, None
