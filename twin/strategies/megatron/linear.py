"""Column- and row-parallel linears, and the collectives around them.

Without sequence parallelism partial sums are all-reduced: after a row-parallel linear forward, after a
column-parallel one's input gradient backward, there beside the weight gradient. With it the residual stream is
split: gathered before a column-parallel linear and scattered after a row-parallel one; backward the input is
gathered again beside the input gradient's product, and that gradient scattered beside the weight gradient's.
(Megatron's `LinearWithGradAccumulationAndAsyncCommunication`.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Gemm, Mode
from twin.strategies import work
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.local import Linear, Local

TENSOR = "tensor"
Half = Literal["whole", "input", "weight"]
"""What of a backward pass: all of it (B), or the input gradients (I) or the weight gradients (W) alone."""


@dataclass(frozen=True)
class Linears:
    """Writes linears of one rank."""

    job: MegatronJob
    local: Local
    half: Half = "whole"
    first: bool = False
    """Whether this is the first micro-step of its chunk, which writes the sums of gradients instead of adding."""

    @property
    def split(self) -> bool:
        """Whether weights are cut at all."""
        return self.local.grid.tensor > 1

    @property
    def scattered(self) -> bool:
        """Whether the residual stream is split between linears."""
        return self.split and self.job.sequence_parallel

    def forward(self, emit: Emitter, linear: Linear) -> None:
        """The product, with what comes before or after it."""
        if self._eight(linear):  # what is gathered is rounded before, and travels so
            here = self.local.residual_tokens if linear.column and self.scattered else self.local.tokens
            emit.compute("quantize", work.quantize(self.job, here * linear.k))
        gemm = self._product(linear, self.local.tokens, linear.n, linear.k, "TN")
        if linear.column:
            if self.scattered:
                self._beside_parts(emit, "all_gather", gemm, before=True)
            else:
                emit.compute("gemm", gemm)
            return
        if self.scattered:
            self._beside_parts(emit, "reduce_scatter", gemm, before=False)
        else:
            emit.compute("gemm", gemm)
            if self.split:
                emit.collective("all_reduce", TENSOR, self.local.whole_bytes)

    def _beside_parts(
        self, emit: Emitter, kind: Literal["all_gather", "reduce_scatter"], gemm: Gemm, *, before: bool
    ) -> None:
        """A product and the collective that feeds it or that it feeds.

        In parts all but one of the product runs beside the collective: the last one waits for what arrives last, or
        the first has to be there before anything leaves.
        """
        size = self.local.whole_bytes if kind == "reduce_scatter" else self._gathered_bytes(gemm.element_bytes)
        one = gemm.m // self.local.grid.tensor
        if not self.job.tensor_overlap or not one:
            if before:
                emit.collective(kind, TENSOR, size)
            emit.compute("gemm", gemm)
            if not before:
                emit.collective(kind, TENSOR, size)
            return
        rest = replace(gemm, m=gemm.m - one)
        if before:
            name = emit.start(kind, TENSOR, size)
            emit.compute("gemm_beside", rest)
            emit.wait(name)
            emit.compute("gemm", replace(gemm, m=one))
            return
        emit.compute("gemm", replace(gemm, m=one))
        name = emit.start(kind, TENSOR, size)
        emit.compute("gemm_beside", rest)
        emit.wait(name)

    def _eight(self, linear: Linear) -> bool:
        return self.job.fp8_linears and linear.name != "head"

    def _bytes(self, linear: Linear) -> int:
        """Bytes of a number that a product reads."""
        return 1 if self._eight(linear) else self.job.element_bytes

    def _product(self, linear: Linear, m: int, n: int, k: int, mode: Mode) -> Gemm:
        """A product whose result is in compute precision."""
        e = self.job.element_bytes
        return Gemm(m, n, k, mode, element_bytes=self._bytes(linear), result_bytes=e if self._eight(linear) else None)

    def _gathered_bytes(self, element_bytes: int) -> float:
        """Bytes of what tensor ranks gather, all of them together."""
        return self.local.whole_bytes * element_bytes / self.job.element_bytes

    def backward(self, emit: Emitter, linear: Linear) -> None:
        """Gradients of input and weight, or one of them."""
        if self._eight(linear) and self.half != "weight":
            gathers = self.scattered and not linear.column
            here = self.local.residual_tokens if gathers else self.local.tokens
            emit.compute("quantize", work.quantize(self.job, here * linear.n))
        if linear.column:
            self._column_backward(emit, linear)
        else:
            self._row_backward(emit, linear)

    def _column_backward(self, emit: Emitter, linear: Linear) -> None:
        size, both = self.local.whole_bytes, self.half == "whole"
        again = self._gathered_bytes(self._bytes(linear))
        if self.half == "weight":
            if self.scattered:
                emit.collective("all_gather", TENSOR, again, "input/all_gather")
            self._weight_gradient(emit, linear)
            return
        gathered = emit.start("all_gather", TENSOR, again, "input/all_gather") if self.scattered and both else ""
        self._input_gradient(emit, linear)
        if gathered:
            emit.wait(gathered)
        reduced = ""
        if self.split:
            reduced = emit.start("reduce_scatter" if self.scattered else "all_reduce", TENSOR, size)
        if both:
            self._weight_gradient(emit, linear)
        if reduced:
            emit.wait(reduced)

    def _row_backward(self, emit: Emitter, linear: Linear) -> None:
        if self.scattered and self.half != "weight":
            emit.collective("all_gather", TENSOR, self._gathered_bytes(self._bytes(linear)), "gradient/all_gather")
        if self.half != "weight":
            self._input_gradient(emit, linear)
        if self.half != "input":
            self._weight_gradient(emit, linear)

    def _input_gradient(self, emit: Emitter, linear: Linear) -> None:
        emit.compute("input_gradient", self._product(linear, self.local.tokens, linear.k, linear.n, "NN"))

    def _weight_gradient(self, emit: Emitter, linear: Linear) -> None:
        """The product adds to the sum itself (`gradient_accumulation_fusion`), or a kernel behind it does."""
        e, tokens = self.job.element_bytes, self.local.tokens
        apart = self.job.accumulates_apart
        product = Gemm(
            linear.n,
            linear.k,
            tokens,
            "NT",
            element_bytes=self._bytes(linear),
            adds=not self.first and not apart,
            result_bytes=e if apart else self.job.main_gradient_bytes,
        )
        emit.compute("weight_gradient", product)
        if apart:
            kernel = work.accumulation(self.job, linear.elements, self.job.main_gradient_bytes, first=self.first)
            emit.compute("accumulate", kernel)
        if linear.bias:
            emit.compute("bias_gradient", work.bias_gradient(float(tokens * linear.n * e)))
