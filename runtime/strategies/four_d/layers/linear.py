"""The 4D linear layer (section 2 of the algorithm).

W (out n, in k); a normal layer contracts over x and produces over y, a transposed one the
other way round. With c the contraction axis and o the output axis, in named-axis notation:

    forward   O[m, n_o] = all_reduce_c( I[m, k_c] · W[n_o, k_c]ᵀ )
    backward  dI[m, k_c] = all_reduce_o( dO[m, n_o] · W[n_o, k_c] )
              dW[n_o, k_c] = reduce_scatter_z( dO[m, n_o]ᵀ · I[m, k_c] )

* OAR: the all-reduce of dI hides behind the product for dW; without an output axis there is
  none, and dW comes first, so that its reduce-scatter starts earlier.
* A weight that does not train has no product for dW and nothing to scatter; low-rank adapters may stand beside it.
* Gradients go to the parameter store, not to `.grad`: they are summed there in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from runtime.parallel.mesh import Communicator
from runtime.parallel.ops import Place
from runtime.strategies.four_d.again import Again, Make
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.gathers import Unit
from runtime.strategies.four_d.layers.adapters import Adapters
from runtime.strategies.four_d.layers.weight_gradient import weight_gradient
from runtime.strategies.four_d.parts import Parts
from runtime.weights.shards import ParameterSpec
from runtime.weights.store import Parameter
from twin.schedule.kernels import Memory
from twin.schedule.ops import Phase
from twin.strategies.four_d.grid import Axis


class Product(NamedTuple):
    """What a forward pass gives."""

    output: torch.Tensor
    inputs: torch.Tensor
    """As the product read them: gathered, where they were divided."""
    between: torch.Tensor | None
    """What adapters have between their products."""


class Linear4D(torch.nn.Module):
    """A linear layer of n out- and k in-features, cut over x, y and z."""

    def __init__(
        self,
        context: FourDContext,
        name: str,
        place: Place,
        n: int,
        k: int,
        *,
        transposed: bool,
        bias: bool,
        parts: tuple[int, ...] = (),
        alike: str | None = None,
        init: float = 0.02,
        bias_fused: bool = False,
        linear: str = "",
    ) -> None:
        super().__init__()
        self.context = context
        self.bias_fused = bias_fused
        self.place = place
        self.contraction: Axis = "y" if transposed else "x"
        self.output: Axis = "x" if transposed else "y"
        self.transposed = transposed
        self._cut = [cut for cut in ("x", "y") if context.grid.size(cut) > 1]
        self.flat = context.flat and bool(linear)
        """Whether it is cut over x and y together: a linear of a block with `tensor: 1d`."""
        self.complete = not transposed if self.flat else self.communicator(self.contraction) is None
        """Whether a product is complete on every rank, so that nothing is to be summed."""
        both: tuple[Axis, ...] = ("y", "x")
        axes = (None, both) if transposed else (both, None)
        self.weight_shard = context.store.declare(
            ParameterSpec(
                f"{name}.weight",
                (n, k),
                axes if self.flat else (self.output, self.contraction),
                parts,
                cut="z",
                decay=True,
                init=init,
                alike=alike,
            )
        )
        self.widths = self._widths(parts or (n,), k)
        """Of the sides of what travels in parts: what lies inside the block, (m, n/G_o) or (m, k/G_c), such as queries,
        keys and values; or the residual stream."""
        self.bias_shard: Parameter | None = None
        if bias:
            spec = ParameterSpec(f"{name}.bias", (n,), (both if self.flat and not transposed else self.output,), parts)
            self.bias_shard = context.store.declare(spec)
        self.adapters: Adapters | None = None
        lora = context.job.lora
        if lora is not None and linear and lora.of_linear(context.job.model, linear):
            self.adapters = Adapters(context, name, place, k, self.contraction, self.output, linear)

    def _widths(self, parts: tuple[int, ...], k: int) -> tuple[int, ...]:
        if self.flat:
            return (sum(parts),) if self.transposed else (k,)
        inner = (k,) if self.transposed else parts
        return tuple(width // self.context.grid.y for width in inner)

    @property
    def bias_left(self) -> torch.Tensor | None:
        """The bias (n/G_o,), if the element-wise work that follows is to add it (`bias_fused`).

        A product that is complete on every rank adds it itself.
        """
        left = self.bias_fused and not self.complete
        return self.bias_shard.local if left and self.bias_shard is not None else None

    @property
    def first_row(self) -> int:
        """The row of the full weight that is the first here (of a weight of one part)."""
        return self.weight_shard.shard.part_rows * self.context.mesh.coordinates[self.output]

    @property
    def unit(self) -> Unit:
        """This weight alone, as what one all-gather carries."""
        return Unit(self.place, [self.weight_shard])

    def communicator(self, axis: Axis) -> Communicator | None:
        """The communicator to reduce over, None if the axis is one rank."""
        return axis if axis in self._cut else None

    def forward(
        self,
        inputs: torch.Tensor,
        parts: Parts | None = None,
        again: Again | None = None,
        given: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Map (m, k/G_c), replicated over o, to (m, n/G_o), replicated over c.

        With `again` the inputs are not kept for the weight's gradient, but made a second time. With `given`, which is
        the output, nothing is computed: it is there for its gradients.

        With `parts` what lies inside the block, the output of a normal layer or the input of a transposed one, is this
        rank's part of x. Cut over x and y together it maps (m, k/G_x) to (m, n/(G_x·G_y)), or the other way round.
        """
        result: torch.Tensor = _Linear.apply(inputs, self.weight_shard.weight, self, parts, again, given)
        return result

    def compute_forward(
        self, inputs: torch.Tensor, parts: Parts | None = None, given: torch.Tensor | None = None
    ) -> Product:
        """The forward pass proper."""
        context, ops, phase = self.context, self.context.ops, self.context.ops.forward_phase
        weight = context.gathers.use(self.weight_shard, phase)
        inputs = self._read(inputs, parts)
        if given is not None:
            between = None if self.adapters is None else self.adapters.between(inputs)
            return Product(given.view_as(given), inputs, between)
        bias = None if self.bias_shard is None else self.bias_shard.local

        def gemm() -> torch.Tensor:
            return context.gemms.product("forward", inputs, weight.t(), bias=bias if self.complete else None)

        output = ops.compute(self.place, "gemm", gemm, lambda: context.gemms.kernel("forward", inputs, weight.t()))
        between = None if self.adapters is None else self.adapters(inputs, output)
        if (summed := self._start_sums(output, parts, None, outputs=True)) is not None:
            output = summed()
            if bias is not None and self.bias_left is None:
                mine = parts is None or self.flat or self.transposed
                added = bias if mine or parts is None else parts.vector(bias, self.widths)
                ops.compute(
                    self.place, "bias", lambda: output.add_(added), lambda: Memory(2.0 * output.nbytes, work="bias")
                )
        return Product(output, inputs, between)

    def _read(self, inputs: torch.Tensor, parts: Parts | None) -> torch.Tensor:
        """Return inputs as the product reads them: gathered, where they are divided."""
        if parts is None or self.transposed == self.flat:
            return inputs
        return parts.gather(self.place, inputs, self.widths)

    def read_again(self, again: Again, parts: Parts | None) -> torch.Tensor:
        """Return inputs that were not kept, as the product read them."""
        inputs = again()
        with self.context.ops.recomputing():
            return self._read(inputs, parts)

    def _start_sums(
        self, partial: torch.Tensor, parts: Parts | None, phase: Phase | None, *, outputs: bool
    ) -> Callable[[], torch.Tensor] | None:
        """Start to sum partial outputs, or input gradients; what is returned waits for it. None: they are complete."""
        collectives, place = self.context.collectives, self.place
        if self.flat:
            if outputs != self.transposed:
                return None
            assert parts is not None
            scattered = parts.scatter(place, partial, self.widths, phase)
            if self.communicator("y") is None:
                return scattered
            return lambda: collectives.all_reduce(place, "y", scattered(), phase=phase).wait()
        over = self.communicator(self.contraction if outputs else self.output)
        if over is None:
            return None
        if parts is not None and over == "x":
            return parts.scatter(place, partial, self.widths, phase)
        return collectives.all_reduce(place, over, partial, phase=phase).wait

    def frozen_backward(self, inputs: Make, between: torch.Tensor | None, gradient: torch.Tensor) -> torch.Tensor:
        """The backward pass of a weight that does not train: returns dI; its adapters' gradients, if it has any.

        `inputs` gives what was read, which only adapters want.
        """
        weight = self.context.gathers.use(self.weight_shard, "bwd")
        gradient = gradient.contiguous()
        adapters, reduce_over = self.adapters, self.communicator(self.output)
        input_gradient = self._input_gradient(gradient, weight)
        between_gradient = None if adapters is None else adapters.input_gradient(gradient, input_gradient)
        reduced = None
        if reduce_over is not None:
            reduced = self.context.collectives.all_reduce(self.place, reduce_over, input_gradient, phase="bwd")
            if not self.context.job.overlap.all_reduce:
                reduced.wait()
        if adapters is not None and between_gradient is not None:
            assert between is not None
            adapters.weight_gradient(inputs(), between, gradient, between_gradient)
        if reduced is not None and self.context.job.overlap.all_reduce:
            reduced.wait()
        return input_gradient

    def compute_backward(
        self, inputs: Make, gradient: torch.Tensor, *, need_input: bool, parts: Parts | None = None
    ) -> torch.Tensor | None:
        """The backward pass proper: returns dI (m, k/G_c), sends dW on its way; `inputs` gives what was read."""
        weight = self.context.gathers.use(self.weight_shard, "bwd")
        gradient = gradient.contiguous()
        own = gradient
        if parts is not None and self.transposed == self.flat:
            gradient = parts.gather(self.place, gradient, self.widths, "bwd")
        # a bias that lies along the residual stream is divided as that is
        of_bias = own if self.flat else gradient
        if not need_input:
            weight_gradient(self.context, self.place, self.weight_shard, inputs(), gradient)
            self._bias_gradient(of_bias)
            return None
        if self.transposed if self.flat else self.communicator(self.output) is None:
            weight_gradient(self.context, self.place, self.weight_shard, inputs(), gradient)
            input_gradient = self._input_gradient(gradient, weight)
            self._bias_gradient(of_bias)
            return input_gradient
        input_gradient = self._input_gradient(gradient, weight)
        wait = self._start_sums(input_gradient, parts, "bwd", outputs=False)
        assert wait is not None
        if not self.context.job.overlap.all_reduce:
            reduced = wait()
        weight_gradient(self.context, self.place, self.weight_shard, inputs(), gradient)
        self._bias_gradient(of_bias)
        return wait() if self.context.job.overlap.all_reduce else reduced

    def _input_gradient(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        gemms = self.context.gemms
        return self.context.ops.compute(
            self.place,
            "input_gradient",
            lambda: gemms.product("input_gradient", gradient, weight),
            lambda: gemms.kernel("input_gradient", gradient, weight),
            phase="bwd",
        )

    def _bias_gradient(self, gradient: torch.Tensor) -> None:
        wide = self.context.master_type
        if (bias := self.bias_shard) is not None:
            self.context.ops.compute(
                self.place,
                "bias_gradient",
                lambda: bias.accumulate(gradient.sum(0, dtype=wide)),
                lambda: Memory(float(gradient.nbytes), work="bias_gradient"),
                phase="bwd",
            )


class _Linear(torch.autograd.Function):
    """Ties `Linear4D`'s two passes into autograd; the weight is there to be differentiated for."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        _weight: torch.Tensor,
        layer: Linear4D,
        parts: Parts | None,
        again: Again | None,
        given: torch.Tensor | None,
    ) -> torch.Tensor:
        output, inputs, between = layer.compute_forward(inputs, parts, given)
        # for the gradient of the weight, or of adapters
        wanted = again is None and (not layer.weight_shard.frozen or between is not None)
        ctx.save_for_backward(inputs if wanted else None, between)
        ctx.layer, ctx.parts, ctx.again = layer, parts, again
        phase: Phase = layer.context.ops.forward_phase
        if phase == "fwd":
            layer.context.gathers.release(layer.weight_shard, after_forward=True)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None, None, None]:
        inputs, between = ctx.saved_tensors
        layer: Linear4D = ctx.layer
        again: Again | None = ctx.again
        read: Make = (lambda: inputs) if again is None else partial(layer.read_again, again, ctx.parts)
        if layer.weight_shard.frozen:
            result: torch.Tensor | None = layer.frozen_backward(read, between, gradient)
        else:
            result = layer.compute_backward(read, gradient, need_input=ctx.needs_input_grad[0], parts=ctx.parts)
        layer.context.gathers.release(layer.weight_shard)
        return result, None, None, None, None, None
