"""The 4D linear layer: forward, backward, and the prefetch of gathered weights.

Section 2 and 5 of the algorithm. Local shapes: input (m, k/G_c), weight gathered over z
(n/G_o, k/G_c), output (m, n/G_o).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from twin.description.job import Job
from twin.schedule.emit import Emitter
from twin.schedule.kernels import Gemm, Memory
from twin.schedule.ops import Communicator
from twin.schedule.shapes import Linear


@dataclass
class WeightGathers:
    """All-gathers over z of one pass, in execution order (OAG).

    When the pass comes to linear i it starts the gather of linear i + depth and waits for its
    own. Without overlap each gather is started where it is needed.
    """

    linears: Sequence[Linear]
    emitters: Sequence[Emitter]
    element_bytes: int
    depth: int | None
    """Prefetch depth; None without overlap."""
    _names: dict[int, str] = field(default_factory=dict)
    _next: int = 0

    def enter(self) -> None:
        """Begin the pass: start the first gathers."""
        if self.depth is not None:
            self._start_until(self.depth)

    def use(self, index: int, emit: Emitter) -> None:
        """Make the weight of linear `index` available to the next op."""
        if self.linears[index].z == 1:
            return
        self._start_until(index + 1 + (self.depth or 0))
        emit.wait(self._names.pop(index))

    def _start_until(self, end: int) -> None:
        while self._next < min(end, len(self.linears)):
            linear, emit = self.linears[self._next], self.emitters[self._next]
            if linear.z > 1:
                size = linear.gathered_elements * self.element_bytes
                self._names[self._next] = emit.start("all_gather", "z_gather", size)
            self._next += 1


def forward(emit: Emitter, job: Job, linear: Linear, tokens: int) -> None:
    """Product and all-reduce over the contraction axis; the weight is gathered already."""
    e = job.element_bytes
    emit.compute("gemm", Gemm(tokens, linear.n_local, linear.k_local, "TN", element_bytes=e))
    if linear.contraction_size > 1:
        output_bytes = tokens * linear.n_local * e
        emit.collective("all_reduce", _communicator(linear.contraction_axis), output_bytes)
        if job.model.biases and linear.layer is not None and not job.fused_elementwise:
            # the bias can be added only to the complete sum, so no longer inside the GEMM
            emit.compute("bias", Memory(2.0 * output_bytes))


def backward(emit: Emitter, job: Job, linear: Linear, tokens: int) -> str | None:
    """Input and weight gradients in the order of section 2.

    Returns the name of the reduce-scatter if it is still in flight.
    """
    e = job.element_bytes
    input_gradient = Gemm(tokens, linear.k_local, linear.n_local, "NN", element_bytes=e)
    weight_gradient = Gemm(linear.n_local, linear.k_local, tokens, "NT", element_bytes=e)
    if linear.output_size == 1:
        emit.compute("weight_gradient", weight_gradient)
        pending = _reduce_scatter(emit, job, linear)
        emit.compute("input_gradient", input_gradient)
        _bias_gradient(emit, job, linear, tokens)
        return pending
    emit.compute("input_gradient", input_gradient)
    reduced = emit.start(
        "all_reduce", _communicator(linear.output_axis), tokens * linear.k_local * e
    )
    if not job.overlap.all_reduce:
        emit.wait(reduced)
    emit.compute("weight_gradient", weight_gradient)
    pending = _reduce_scatter(emit, job, linear)
    _bias_gradient(emit, job, linear, tokens)
    if job.overlap.all_reduce:
        emit.wait(reduced)
    return pending


def _reduce_scatter(emit: Emitter, job: Job, linear: Linear) -> str | None:
    if linear.z == 1:
        return None
    name = emit.start("reduce_scatter", "z_scatter", linear.gathered_elements * job.element_bytes)
    if job.overlap.reduce_scatter:
        return name
    emit.wait(name)
    return None


def _bias_gradient(emit: Emitter, job: Job, linear: Linear, tokens: int) -> None:
    if job.model.biases and linear.layer is not None:
        emit.compute("bias_gradient", Memory(float(tokens * linear.n_local * job.element_bytes)))


def _communicator(axis: str) -> Communicator:
    return cast("Communicator", axis)
