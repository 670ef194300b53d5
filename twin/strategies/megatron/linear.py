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
from twin.schedule.kernels import Gemm, Memory, Mode
from twin.strategies import work
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.local import Linear, Local
from twin.strategies.sizes import FP32_BYTES

TENSOR = "tensor"
_SCATTERED_PARTS = 4
"""Parts of a product that Transformer Engine scatters one by one: `num_splits`' default (its pull request 732)."""
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

    def forward(self, emit: Emitter, linear: Linear, *, gathered: bool = False, summed: bool = True) -> None:
        """The product, with what comes before or after it.

        `gathered`: what a column-parallel one reads is there already; `summed`: a row-parallel one's parts of sums are
        summed over ranks.
        """
        if self._eight(linear):  # what is gathered is rounded before, and travels so
            here = self.local.residual_tokens if linear.column and self.scattered else self.local.tokens
            self._quantize(emit, here * linear.k)
        gemm = self._product(linear, self.local.tokens, linear.n, linear.k, "TN")
        if linear.column:
            if self.scattered and not gathered:
                own_class = (
                    linear.name == "head" and self.job.flavour != "torch"
                )  # Megatron's, not Transformer Engine's
                self._gather_beside(emit, gemm, waits=own_class)
            else:
                emit.compute("gemm", gemm)
            return
        if self.scattered and summed:
            self._product_scattered(emit, gemm)
        else:
            emit.compute("gemm", gemm)
            if self.split and summed:
                emit.collective("all_reduce", TENSOR, self.local.whole_bytes)

    def gather(self, emit: Emitter, size: float, name: str = "") -> None:
        """Gather along the sequence; DTensor's parts lie rank by rank, and are copied to where they belong.

        (`torch.cat` of `all_gather_tensor` along another dimension than the first.)
        """
        emit.collective("all_gather", TENSOR, size, name)
        if self.job.flavour == "torch":
            emit.compute("order", Memory(2.0 * size, work="copy"))

    def scatter(self, emit: Emitter) -> None:
        """Sum over tensor ranks, and scatter along the sequence; of DTensor a copy comes before."""
        size = self.local.whole_bytes
        if self.job.flavour == "torch":
            emit.compute("order", Memory(2.0 * size, work="copy"))
        emit.collective("reduce_scatter", TENSOR, size)

    def _gather_beside(
        self, emit: Emitter, gemm: Gemm, *, name: str = "gemm", gather: str = "", waits: bool = False
    ) -> None:
        """A product of what is gathered; with tensor_overlap, unless it `waits`, in parts that need no more of it.

        Each rank begins with its own part and sends on what it has read, so all but one part run beside the gather.
        Parts are computed on several streams: those beside it fill the device's waves together.
        (Transformer Engine's `ring_exchange`, its default for qkv_fprop, fc1_fprop, proj_dgrad, fc2_dgrad; PyTorch's
        `fused_all_gather_matmul`.)
        """
        size, parts = self._gathered_bytes(gemm.element_bytes), self.local.grid.tensor
        if waits or not self._overlaps(gemm, parts):
            self.gather(emit, size, gather)
            emit.compute(name, gemm)
            return
        one = gemm.m // parts
        started = emit.start("all_gather", TENSOR, size, gather)
        emit.compute(f"{name}_beside", replace(gemm, m=one, batch=parts - 1))
        emit.wait(started)
        emit.compute(name, replace(gemm, m=gemm.m - (parts - 1) * one))

    def _product_scattered(self, emit: Emitter, gemm: Gemm) -> None:
        """A product whose rows are summed over ranks and scattered; with tensor_overlap in parts.

        Transformer Engine scatters each of four parts when it is there (`pipeline`, its default for proj_fprop and
        fc2_fprop, `num_splits` 4), so the last one's sum waits for the last product. PyTorch
        (`fused_matmul_reduce_scatter`) sends each rank's part to it while the next is computed, and adds them up when
        all are there.
        """
        torch = self.job.flavour == "torch"
        size, parts = self.local.whole_bytes, self.local.grid.tensor if torch else _SCATTERED_PARTS
        if not self._overlaps(gemm, parts):
            emit.compute("gemm", gemm)
            self.scatter(emit)
            return
        one = gemm.m // parts
        emit.compute("gemm", replace(gemm, m=gemm.m - (parts - 1) * one))
        share = 1.0 if torch else 1 - 1 / parts
        started = emit.start("reduce_scatter", TENSOR, size * share)
        emit.compute("gemm_beside", replace(gemm, m=one, batch=parts - 1))
        emit.wait(started)
        if torch:
            emit.compute("sum", Memory(size * (1 + 1 / parts), work="accumulate"))
        else:
            emit.collective("reduce_scatter", TENSOR, size / parts, "last/reduce_scatter_tensor")

    def _overlaps(self, gemm: Gemm, parts: int) -> bool:
        return self.job.tensor_overlap and gemm.m >= parts

    def _eight(self, linear: Linear) -> bool:
        return self.job.fp8_linears and linear.name != "head"

    def _quantize(self, emit: Emitter, elements: int) -> None:
        emit.compute("quantize", work.quantize(self.job, elements, by_content=self.job.scales_by_content))

    def _bytes(self, linear: Linear) -> int:
        """Bytes of a number that a product reads."""
        return 1 if self._eight(linear) else self.job.element_bytes

    def _product(self, linear: Linear, m: int, n: int, k: int, mode: Mode, *, promotes: bool = False) -> Gemm:
        """A product whose result is in compute precision."""
        eight = self._eight(linear)
        result = self.job.element_bytes if eight else None
        return Gemm(m, n, k, mode, element_bytes=self._bytes(linear), result_bytes=result, promotes=promotes and eight)

    def _gathered_bytes(self, element_bytes: int) -> float:
        """Bytes of what tensor ranks gather, all of them together."""
        return self.local.whole_bytes * element_bytes / self.job.element_bytes

    def backward(self, emit: Emitter, linear: Linear, *, gathered: bool = False, summed: bool = True) -> None:
        """Gradients of input and weight, or one of them.

        `gathered`: what it reads of other ranks is there already; `summed`: a column-parallel one's input gradient is
        summed over ranks.
        """
        if self._eight(linear) and self.half != "weight":
            gathers = self.scattered and not linear.column
            here = self.local.residual_tokens if gathers else self.local.tokens
            self._quantize(emit, here * linear.n)
        gathers, sums = self.scattered and not gathered, self.split and summed
        if self.job.flavour == "torch":
            self._backward_torch(emit, linear, gathers=gathers, sums=sums)
        elif not linear.column:
            self._row_backward(emit, linear, gathers=gathers)
        else:
            self._column_backward(emit, linear, gathers=gathers, sums=sums)

    def _column_backward(self, emit: Emitter, linear: Linear, *, gathers: bool, sums: bool) -> None:
        size, both = self.local.whole_bytes, self.half == "whole"
        again = self._gathered_bytes(self._bytes(linear))
        if self.half == "weight":
            if gathers:
                emit.collective("all_gather", TENSOR, again, "input/all_gather_tensor")
            self._weight_gradient(emit, linear)
            return
        gathered = emit.start("all_gather", TENSOR, again, "input/all_gather_tensor") if gathers and both else ""
        self._input_gradient(emit, linear)
        if gathered:
            emit.wait(gathered)
        reduced = ""
        if sums:
            reduced = emit.start("reduce_scatter" if self.scattered else "all_reduce", TENSOR, size)
        if both:
            self._weight_gradient(emit, linear)
        if reduced:
            emit.wait(reduced)

    def _backward_torch(self, emit: Emitter, linear: Linear, *, gathers: bool, sums: bool) -> None:
        """Both products, then the sum of input gradients: DTensor keeps what it gathered, and waits where it sends.

        A row-parallel one's bias was added to the sum. With tensor_overlap (async tensor parallelism) the gradient that
        a row-parallel one reads comes in parts beside the product. Those of column-parallel ones that read the same
        are added before they are scattered, which is no pattern that PyTorch's compiler knows (pull request 149946).
        """
        gives_input, row = self.half != "weight", not linear.column
        beside = self.job.tensor_overlap and row and gathers
        if row and self.split and gives_input:
            self._bias_gradient(emit, linear, self.local.residual_tokens)
            if gathers and not beside:
                self.gather(emit, self._gathered_bytes(self._bytes(linear)))
        if self.half != "input":
            self._weight_gradient(emit, linear)
        if not gives_input:
            return
        product = self._input_product(linear)
        if beside:
            self._gather_beside(emit, product, name="input_gradient")
        else:
            emit.compute("input_gradient", product)
        if linear.column or not self.split:
            self._bias_gradient(emit, linear, self.local.tokens)
        if linear.column and sums:
            if self.scattered:
                self.scatter(emit)
            else:
                emit.collective("all_reduce", TENSOR, self.local.whole_bytes)

    def _bias_gradient(self, emit: Emitter, linear: Linear, tokens: int) -> None:
        if linear.bias:
            emit.compute("bias_gradient", work.bias_gradient(float(tokens * linear.n * self.job.element_bytes)))

    def _row_backward(self, emit: Emitter, linear: Linear, *, gathers: bool) -> None:
        if self.half == "weight":
            self._weight_gradient(emit, linear)
            return
        if gathers:
            product, gradient = self._input_product(linear), "gradient/all_gather_tensor"
            self._gather_beside(emit, product, name="input_gradient", gather=gradient)
        else:
            self._input_gradient(emit, linear)
        if self.half == "whole":
            self._weight_gradient(emit, linear)

    def _input_gradient(self, emit: Emitter, linear: Linear) -> None:
        emit.compute("input_gradient", self._input_product(linear))

    def _input_product(self, linear: Linear) -> Gemm:
        return self._product(linear, self.local.tokens, linear.k, linear.n, "NN", promotes=True)

    def _weight_gradient(self, emit: Emitter, linear: Linear) -> None:
        """The product adds to the sum itself (`gradient_accumulation_fusion`), or a kernel behind it does."""
        job, e, tokens = self.job, self.job.element_bytes, self.local.tokens
        wide, known = job.main_gradient_bytes, not self.first
        in_product = job.accumulates_in_product
        product = Gemm(
            linear.n,
            linear.k,
            tokens,
            "NT",
            element_bytes=self._bytes(linear),
            adds=known and in_product,
            result_bytes=wide if in_product else (e if job.flavour != "torch" or self._eight(linear) else None),
            promotes=self._eight(linear),
        )
        emit.compute("weight_gradient", product)
        if job.flavour == "torch":
            self._accumulate_torch(emit, linear)
            return
        if job.accumulates_apart:
            emit.compute("accumulate", work.accumulation(job, linear.elements, wide, first=self.first))
        # a row-parallel one's bias is added to the sum of products, of which each rank holds its own tokens
        self._bias_gradient(emit, linear, tokens if linear.column else self.local.residual_tokens)

    def _accumulate_torch(self, emit: Emitter, linear: Linear) -> None:
        """Sums of weights that are cut are of the type that is reduced, and begin with the first gradient.

        Where nobody cuts weights they are the optimizer's own, in fp32.
        """
        job = self.job
        if job.reduces_each:
            return
        whole = job.weight_parts == 1
        wide = FP32_BYTES if whole else job.main_gradient_bytes
        if whole or not self.first or wide != job.element_bytes:
            emit.compute("accumulate", work.accumulation(job, linear.elements, wide, first=self.first))
