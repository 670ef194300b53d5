"""The 4D linear layer: forward, backward, and how weights and gradients travel over z.

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
from twin.schedule.shapes import Linear, Unit


@dataclass
class WeightGathers:
    """All-gathers over z of one pass, in execution order (OAG).

    When the pass comes to unit i it starts the gather of unit i + depth and waits for its own.
    Without overlap each gather is started where it is needed.
    """

    job: Job
    units: Sequence[tuple[Emitter, Unit]]
    """In the order of the pass, each with the emitter of its block."""
    _started: list[str] = field(default_factory=list)
    _waited: int = 0

    def enter(self) -> None:
        """Begin the pass: start the first gathers."""
        self._start_until(self._ahead)

    def use(self, linear: Linear) -> None:
        """Make the weight of `linear` available to the next op; the pass's order must be kept."""
        arrived = self._waited and linear in self.units[self._waited - 1][1].linears
        if linear.z == 1 or arrived:
            return
        self._start_until(self._waited + 1 + self._ahead)
        emit, _ = self.units[self._waited]
        emit.wait(self._started[self._waited])
        self._waited += 1

    @property
    def _ahead(self) -> int:
        overlap = self.job.overlap
        return overlap.prefetch_depth if overlap.all_gather else 0

    def _start_until(self, end: int) -> None:
        if self.job.concrete_grid.z == 1:
            return
        for emit, unit in self.units[len(self._started) : end]:
            size = unit.gathered_elements * self.job.element_bytes
            name = f"{unit.name}/all_gather_z"
            self._started.append(emit.start("all_gather", "z_gather", size, name))


@dataclass
class GradientScatters:
    """Reduce-scatters over z of a backward pass over some units (ORS)."""

    job: Job
    emit: Emitter
    units: Sequence[Unit]
    in_flight: list[str] = field(default_factory=list)
    """Those that are still to be waited for."""

    def after(self, linear: Linear) -> None:
        """Go on from the weight gradient of `linear`: if its unit is complete now, scatter it.

        A unit's first linear is the last one that the backward pass comes to.
        """
        if linear.z == 1:
            return
        for unit in self.units:
            if linear == unit.linears[0]:
                size = unit.gathered_elements * self.job.element_bytes
                name = f"{unit.name}/reduce_scatter_z"
                started = self.emit.start("reduce_scatter", "z_scatter", size, name)
                if self.job.overlap.reduce_scatter:
                    self.in_flight.append(started)
                else:
                    self.emit.wait(started)


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


def backward(emit: Emitter, job: Job, linear: Linear, tokens: int,
             scatters: GradientScatters) -> None:  # fmt: skip
    """Input and weight gradients in the order of section 2."""
    e = job.element_bytes
    input_gradient = Gemm(tokens, linear.k_local, linear.n_local, "NN", element_bytes=e)
    weight_gradient = Gemm(linear.n_local, linear.k_local, tokens, "NT", element_bytes=e)
    if linear.output_size == 1:
        emit.compute("weight_gradient", weight_gradient)
        scatters.after(linear)
        emit.compute("input_gradient", input_gradient)
        _bias_gradient(emit, job, linear, tokens)
        return
    emit.compute("input_gradient", input_gradient)
    reduced = emit.start(
        "all_reduce", _communicator(linear.output_axis), tokens * linear.k_local * e
    )
    if not job.overlap.all_reduce:
        emit.wait(reduced)
    emit.compute("weight_gradient", weight_gradient)
    scatters.after(linear)
    _bias_gradient(emit, job, linear, tokens)
    if job.overlap.all_reduce:
        emit.wait(reduced)


def _bias_gradient(emit: Emitter, job: Job, linear: Linear, tokens: int) -> None:
    if job.model.biases and linear.layer is not None:
        emit.compute("bias_gradient", Memory(float(tokens * linear.n_local * job.element_bytes)))


def _communicator(axis: str) -> Communicator:
    return cast("Communicator", axis)
