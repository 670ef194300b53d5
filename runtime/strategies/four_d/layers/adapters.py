"""Low-rank adapters beside a linear layer that does not train; the algebra is in `twin.strategies.four_d.adapters`.

A (r, k/G_c) and B (n/G_o, r) of a target are whole over z; B starts at zero, A as in PEFT. What a rank gives of either
product is partial just where the layer's own is, and joins it before it is reduced.
"""

from __future__ import annotations

from math import sqrt

import torch

from runtime.parallel.ops import Place
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.gemm import Pass
from runtime.weights.shards import ParameterSpec
from runtime.weights.store import Parameter
from twin.description.lora import parts_of
from twin.schedule.kernels import Memory
from twin.schedule.ops import Phase
from twin.strategies.four_d.grid import Axis


class Adapters(torch.nn.Module):
    """The adapters of one linear of k in-features that contracts over one axis and produces over another."""

    def __init__(
        self, context: FourDContext, name: str, place: Place, k: int, contraction: Axis, output: Axis, linear: str
    ) -> None:
        super().__init__()
        lora, model = context.job.lora, context.job.model
        assert lora is not None
        self.context, self.place, self.rank, self.scale = context, place, lora.rank, lora.scale
        self.targets: list[str] = []
        self.rows: list[slice] = []
        """Where each target's rows lie in what the linear gives on this rank."""
        shapes, first = [], 0
        for target, rows in parts_of(model, linear):
            local = rows // context.grid.size(output)
            if target in lora.targets:
                self.targets.append(target)
                self.rows.append(slice(first, first + local))
                shapes.append(rows)
            first += local

        def declare(leaf: str, shape: tuple[int, int], axes: tuple[Axis | None, ...], partial: Axis) -> Parameter:
            # kaiming_uniform(a=√5), as PEFT has it
            init = 1.0 / sqrt(3.0 * k) if leaf.endswith("_a") else None
            spec = ParameterSpec(
                f"{name}.adapters.{leaf}",
                shape,
                axes,
                decay=True,
                init=init,
                uniform=True,
                partial=partial,
                adapter=True,
            )
            return context.store.declare(spec)

        # those of a kind lie side by side, so that all A are one matrix
        self.a = [declare(f"{t}_a", (lora.rank, k), (None, contraction), output) for t in self.targets]
        self.b = [
            declare(f"{t}_b", (n, lora.rank), (output, None), contraction)
            for t, n in zip(self.targets, shapes, strict=True)
        ]

    def _together(self, flat: torch.Tensor) -> torch.Tensor:
        """Every A, one below the other, in one of the store's buffers: (targets · r, k/G_c)."""
        return flat[self.a[0].start : self.a[-1].stop].view(self.rank * len(self.a), -1)

    def forward(self, inputs: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Add to output (m, n/G_o) what adapters make of inputs (m, k/G_c); return scale · I · Aᵀ (m, targets · r)."""
        between = self.between(inputs)
        for target, rows, b, columns in zip(self.targets, self.rows, self.b, between.split(self.rank, 1), strict=True):
            self._product(f"lora_b_{target}", "forward", columns, b.local.t(), add_to=output[:, rows])
        return between

    def between(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return scale · I · Aᵀ (m, targets · r) of inputs (m, k/G_c)."""
        a = self._together(self.context.store.compute)
        return self._product("lora_a", "forward", inputs, a.t(), scale=self.scale)

    def input_gradient(self, gradient: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """Add to the input's gradient (m, k/G_c) what comes through adapters; return dH (m, targets · r)."""
        parts = [
            self._product(
                f"lora_b_{target}_input_gradient", "input_gradient", gradient[:, rows], b.local, scale=self.scale
            )
            for target, rows, b in zip(self.targets, self.rows, self.b, strict=True)
        ]
        between = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        a = self._together(self.context.store.compute)
        self._product("lora_a_input_gradient", "input_gradient", between, a, add_to=total)
        return between

    def weight_gradient(
        self, inputs: torch.Tensor, between: torch.Tensor, gradient: torch.Tensor, between_gradient: torch.Tensor
    ) -> None:
        """Add the gradients of A and B to their sums: of inputs, H, dO and dH, as above."""
        sums = self.context.store.gradient
        found = [("lora_a_weight_gradient", between_gradient, inputs, self._together(sums))]
        for target, rows, b, columns in zip(self.targets, self.rows, self.b, between.split(self.rank, 1), strict=True):
            total = b.local_gradient
            found.append((f"lora_b_{target}_weight_gradient", gradient[:, rows], columns, total))
        if sums.dtype == inputs.dtype:  # the products add to the sums themselves
            seen = self.a[0].seen
            for name, left, right, total in found:
                self._product(name, "weight_gradient", left.t(), right, add_to=total, fresh=not seen)
        else:
            self._accumulate([(self._product(n, "weight_gradient", a.t(), b), t) for n, a, b, t in found])
        for parameter in (*self.a, *self.b):
            parameter.seen = True

    def _accumulate(self, products: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        seen = self.a[0].seen

        def run() -> None:
            for product, total in products:
                if seen:
                    total.add_(product)
                else:
                    total.copy_(product)

        moved = sum(product.nbytes + (2 if seen else 1) * total.nbytes for product, total in products)
        self.context.ops.compute(
            self.place, "lora_accumulate", run, lambda: Memory(float(moved), work="accumulate"), phase="bwd"
        )

    def _product(
        self,
        name: str,
        pass_: Pass,
        left: torch.Tensor,
        right: torch.Tensor,
        *,
        scale: float = 1.0,
        add_to: torch.Tensor | None = None,
        fresh: bool = False,
    ) -> torch.Tensor:
        """Multiply under a name; add to what is there, or write it if that is of an earlier step."""
        gemms, adds = self.context.gemms, add_to is not None and not fresh

        def run() -> torch.Tensor:
            if add_to is None or fresh:
                return gemms.product(pass_, left, right, add_to, scale=scale)
            gemms.accumulate(pass_, left, right, add_to)
            return add_to

        phase: Phase | None = None if pass_ == "forward" else "bwd"
        return self.context.ops.compute(
            self.place, name, run, lambda: gemms.kernel(pass_, left, right, adds=adds), phase=phase
        )
