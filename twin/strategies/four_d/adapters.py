"""Low-rank adapters beside a 4D linear layer that does not train.

A (r, k_c) is split like the input and whole on every rank of the output axis; B (n_o, r) is split like the output and
whole on every rank of the contraction axis; neither is cut over z. With s = alpha / rank, c the contraction and o the
output axis:

    forward   H[m, r] = s · I[m, k_c] · A[r, k_c]ᵀ                       partial over c, and left so
              O[m, n_o] = all_reduce_c( I · Wᵀ + H · B[n_o, r]ᵀ )
    backward  dH[m, r] = s · dO[m, n_o] · B                              partial over o, and left so
              dI[m, k_c] = all_reduce_o( dO · W + dH · A )
              dB[n_o, r] = dOᵀ · H     partial over c,     dA[r, k_c] = dHᵀ · I     partial over o

Both partial products are linear in what is partial, so they join the sums that the layer has anyway: no
collective more. What is partial of dA and dB is summed once a step. All adapters of a linear share one product with
its input.
"""

from __future__ import annotations

from dataclasses import dataclass

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Gemm, Memory
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.shapes import Linear
from twin.strategies.sizes import FP32_BYTES


@dataclass(frozen=True)
class Adapters:
    """The adapters of one linear on a rank."""

    linear: Linear
    rank: int
    parts: tuple[tuple[str, int], ...]
    """Targets, and local rows of each, in the order of the rows."""

    @property
    def width(self) -> int:
        """Numbers of a token between A and B, of all parts."""
        return self.rank * len(self.parts)

    @property
    def a_elements(self) -> int:
        """Elements of all A, whose gradients are partial over the output axis."""
        return self.width * self.linear.k_local

    @property
    def b_elements(self) -> int:
        """Elements of all B, whose gradients are partial over the contraction axis."""
        return sum(self.rank * rows for _, rows in self.parts)

    @property
    def elements(self) -> int:
        """All of them."""
        return self.a_elements + self.b_elements

    def partial_over(self, axis: str) -> int:
        """Elements whose gradients are partial over an axis."""
        return self.a_elements if axis == self.linear.output_axis else self.b_elements


def adapters_of(job: FourDJob, linear: Linear) -> Adapters | None:
    """Return the adapters of a linear, if it has any."""
    if job.lora is None or linear.layer is None:
        return None
    parts = job.lora.of_linear(job.model, linear.name)
    local = tuple((name, rows // linear.output_size) for name, rows in parts)
    return Adapters(linear, job.lora.rank, local) if local else None


def between(emit: Emitter, job: FourDJob, adapters: Adapters, tokens: int) -> None:
    """Products with A."""
    kernel = Gemm(tokens, adapters.width, adapters.linear.k_local, "TN", element_bytes=job.element_bytes)
    emit.compute("lora_a", kernel)


def forward(emit: Emitter, job: FourDJob, adapters: Adapters, tokens: int) -> None:
    """Products with A and B, into what is about to be reduced."""
    between(emit, job, adapters, tokens)
    e = job.element_bytes
    for name, rows in adapters.parts:
        emit.compute(f"lora_b_{name}", Gemm(tokens, rows, adapters.rank, "TN", element_bytes=e, adds=True))


def input_gradient(emit: Emitter, job: FourDJob, adapters: Adapters, tokens: int) -> None:
    """What goes on to the layer's input, into what is about to be reduced."""
    e = job.element_bytes
    for name, rows in adapters.parts:
        emit.compute(f"lora_b_{name}_input_gradient", Gemm(tokens, adapters.rank, rows, "NN", element_bytes=e))
    into = Gemm(tokens, adapters.linear.k_local, adapters.width, "NN", element_bytes=e, adds=True)
    emit.compute("lora_a_input_gradient", into)


def weight_gradient(emit: Emitter, job: FourDJob, adapters: Adapters, tokens: int, *, first: bool) -> None:
    """Gradients of all A and B; in full precision the products add to the sums themselves."""
    e, k = job.element_bytes, adapters.linear.k_local
    adds = e >= FP32_BYTES and not first
    a_gradient = Gemm(adapters.width, k, tokens, "NT", element_bytes=e, adds=adds)
    emit.compute("lora_a_weight_gradient", a_gradient)
    for name, rows in adapters.parts:
        b_gradient = Gemm(rows, adapters.rank, tokens, "NT", element_bytes=e, adds=adds)
        emit.compute(f"lora_b_{name}_weight_gradient", b_gradient)
    if e < FP32_BYTES:
        # read the gradient, read and write the fp32 sum: the first time only write it
        moved = float(adapters.elements * (e + FP32_BYTES * (1 if first else 2)))
        emit.compute("lora_accumulate", Memory(moved, kernels=1 + len(adapters.parts), work="accumulate"))
