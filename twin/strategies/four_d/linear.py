"""The 4D linear layer: forward, backward, and how weights and gradients travel over z.

Section 2 and 5 of the algorithm. Local shapes: input (m, k/G_c), weight gathered over z
(n/G_o, k/G_c), output (m, n/G_o).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Gemm, Memory
from twin.strategies import work
from twin.strategies.four_d import adapters
from twin.strategies.four_d.away import WeightsCome
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.shapes import Linear, Sum, Unit
from twin.strategies.four_d.updated import UpdatedWeights
from twin.strategies.sizes import FP32_BYTES


@dataclass
class WeightGathers:
    """All-gathers over z of one pass, in execution order (OAG).

    When the pass comes to unit i it starts the gather of unit i + depth and waits for its own.
    Without overlap each gather is started where it is needed.
    """

    job: FourDJob
    units: Sequence[tuple[Emitter, Unit]]
    """In the order of the pass, each with the emitter of its block."""
    updated: UpdatedWeights | None = None
    """Where what is gathered may still be on its way from the replicas that have updated it."""
    come: WeightsCome | None = None
    """Where a rank's own part comes from beyond its device: for this pass and perhaps for others."""
    _started: list[str] = field(default_factory=list)
    _waited: int = 0

    def enter(self) -> None:
        """Begin the pass: start the first gathers."""
        self._start_until(self._ahead)

    def use(self, linear: Linear) -> None:
        """Make the weight of `linear` available to the next op; the pass's order must be kept."""
        if linear.z == 1 and self.updated is not None:
            self.updated.need(self.units[0][0].ops, linear.layer)
        if linear.z == 1 and self.come is not None:
            self.come.need(linear)
        arrived = self._waited and linear in self.units[self._waited - 1][1].linears
        if linear.z == 1 or arrived:
            return
        self._start_until(self._waited + 1 + self._ahead)
        emit, unit = self.units[self._waited]
        emit.wait(self._started[self._waited])
        self._waited += 1
        wide, narrow = self.job.gather_element_bytes, self.job.element_bytes
        if wide > narrow:
            moved = float(unit.gathered_elements * (wide + narrow))
            emit.under(unit.name).compute("round", Memory(moved, work="round"))
        if len(unit.linears) > 1:  # their pieces lie interleaved
            copied = 2.0 * unit.gathered_elements * narrow
            emit.under(unit.name).compute("sort", Memory(copied, len(unit.linears), work="copy"))

    @property
    def _ahead(self) -> int:
        overlap = self.job.overlap
        return overlap.prefetch_depth if overlap.all_gather else 0

    def _start_until(self, end: int) -> None:
        for emit, unit in self.units[len(self._started) : end]:
            if unit.linears[0].z == 1:
                return
            if self.updated is not None:
                self.updated.need(emit.ops, unit.linears[0].layer)
            if self.come is not None:
                self.come.need(unit.linears[0])
            size = unit.gathered_elements * self.job.gather_element_bytes
            name = f"{unit.name}/all_gather_z"
            self._started.append(emit.start("all_gather", "z_gather", size, name))


def already_there(_linear: Linear) -> None:
    """Make nothing available: the weight is gathered."""


@dataclass
class GradientScatters:
    """Weight gradients of one micro-step on their way over z, and into their sums (ORS).

    So many reduce-scatters may be in flight; when one more is started the oldest is waited for.
    Without overlap each is waited for where it is started.
    """

    job: FourDJob
    first: bool
    """Whether this is the step's first micro-step, which writes the sums instead of adding."""
    half: int | None = None
    """Which of a micro-step's halves these are of: only the second sends what both have summed."""
    started: int = 0
    _flight: deque[tuple[Emitter, Unit, str]] = field(default_factory=deque)

    @property
    def writes(self) -> bool:
        """Tell whether sums that no collective brings are written: by what comes first of the first micro-step."""
        return self.first and self.half != 1

    def adds(self, linear: Linear) -> bool:
        """Tell whether the product for a weight gradient adds to what is there.

        To the sum itself in full precision, where nothing is scattered; to that of the first half, where something is.
        """
        if linear.z == 1:
            return self.job.element_bytes >= FP32_BYTES and not self.writes
        return self.half == 1

    def after(self, emit: Emitter, units: Sequence[Unit], linear: Linear) -> None:
        """Go on from the weight gradient of `linear`, one of the units of the block at `emit`.

        A unit's first linear is the last one that the backward pass comes to: its gradient
        completes the unit.
        """
        if linear.z == 1:
            # in full precision the product adds to the sum itself
            if self.job.element_bytes < FP32_BYTES:
                size = linear.gathered_elements
                kernel = _accumulate(size, 1, self.job.element_bytes, first=self.writes)
                emit.under(linear.name).compute("accumulate", kernel)
            return
        for unit in units:
            if linear == unit.linears[0] and self.half != 0:
                wide, narrow = self.job.scatter_element_bytes, self.job.element_bytes
                if len(unit.linears) > 1:
                    mixed = Memory(2.0 * unit.gathered_elements * narrow, work="copy")
                    emit.under(unit.name).compute("mix", mixed)
                if wide > narrow:
                    moved = float(unit.gathered_elements * (wide + narrow))
                    emit.under(unit.name).compute("widen", Memory(moved, work="widen"))
                size = unit.gathered_elements * wide
                name = emit.start("reduce_scatter", "z_scatter", size, f"{unit.name}/reduce_scatter_z")
                self._flight.append((emit, unit, name))
                self.started += 1
                self.finish(self.started - self.job.scatters_in_flight)

    def finish(self, until: int | None = None) -> None:
        """Wait for reduce-scatters and add what arrives to the sums.

        With `until`, only for the first so many of those that were started.
        """
        while self._flight and (until is None or self.started - len(self._flight) < until):
            emit, unit, name = self._flight.popleft()
            emit.wait(name)
            several, each = len(unit.linears), self.job.scatter_element_bytes
            kernel = _accumulate(unit.shard_elements, several, each, first=self.first)
            emit.under(unit.name).compute("accumulate", kernel)


def _accumulate(elements: int, kernels: int, gradient_bytes: int, *, first: bool) -> Memory:
    # read the gradient, read and write the fp32 sum: the first time only write it
    each = gradient_bytes + FP32_BYTES * (1 if first else 2)
    return Memory(float(elements * each), kernels, work="accumulate")


def forward(emit: Emitter, job: FourDJob, linear: Linear, tokens: int) -> None:
    """Product and the sums of its partial outputs; the weight is gathered already.

    As published that is one all-reduce over the contraction axis.
    """
    e = job.element_bytes
    gather_input(emit, job, linear, tokens)
    emit.compute("gemm", Gemm(tokens, linear.n_local, linear.k_local, "TN", element_bytes=e))
    if (beside := adapters.adapters_of(job, linear)) is not None:
        adapters.forward(emit, job, beside, tokens)
    if linear.output_sums:
        left = tokens * linear.n_local * e
        for total in linear.output_sums:
            emit.wait(_start_sum(emit, linear, total, left))
            left = _left(left, linear, total)
        if linear.layer is not None and job.model.has_bias(linear.name) and not _bias_fused(job, linear):
            # the bias can be added only to the complete sum, so no longer inside the GEMM
            emit.compute("bias", work.bias(left))


def backward(
    under: Emitter,
    job: FourDJob,
    linear: Linear,
    tokens: int,
    units: Sequence[Unit],
    scatters: GradientScatters,
    input_again: Callable[[], None] = lambda: None,
) -> None:
    """Input and weight gradients in the order of section 2; `under` and `units` are the block's.

    `input_again` computes what the weight gradient reads, where it was not kept: beside the sum of input gradients.
    """
    if job.lora is not None:
        _frozen_backward(under.under(linear.name), job, linear, tokens, input_again, first=scatters.first)
        return
    e, emit = job.element_bytes, under.under(linear.name)
    input_gradient = Gemm(tokens, linear.k_local, linear.n_local, "NN", element_bytes=e)
    adds = scatters.adds(linear)
    if linear.gathers_gradient:
        _gather(emit, linear, tokens * linear.n_local * e)
    weight_gradient = Gemm(linear.n_local, linear.k_local, tokens, "NT", element_bytes=e, adds=adds)
    if not linear.gradient_sums:
        input_again()
        emit.compute("weight_gradient", weight_gradient)
        scatters.after(under, units, linear)
        emit.compute("input_gradient", input_gradient)
        _bias_gradient(emit, job, linear, tokens)
        return
    emit.compute("input_gradient", input_gradient)
    left, (first, *others) = tokens * linear.k_local * e, linear.gradient_sums
    started = _start_sum(emit, linear, first, left)

    def complete() -> None:
        emit.wait(started)
        size = _left(left, linear, first)
        for total in others:
            emit.wait(_start_sum(emit, linear, total, size))

    if not job.overlap.all_reduce:
        complete()
    input_again()
    emit.compute("weight_gradient", weight_gradient)
    scatters.after(under, units, linear)
    _bias_gradient(emit, job, linear, tokens)
    if job.overlap.all_reduce:
        complete()


def read(emit: Emitter, job: FourDJob, linear: Linear, tokens: int) -> None:
    """What gradients want of a linear whose product is there: what it read, and its adapters' first product."""
    gather_input(emit, job, linear, tokens)
    if (beside := adapters.adapters_of(job, linear)) is not None:
        adapters.between(emit, job, beside, tokens)


def gather_input(emit: Emitter, job: FourDJob, linear: Linear, tokens: int) -> None:
    """Gather what a linear reads, where that is divided over x."""
    if linear.gathers_input:
        _gather(emit, linear, tokens * linear.k_local * job.element_bytes)


def _start_sum(emit: Emitter, linear: Linear, total: Sum, size_bytes: int) -> str:
    """Start to sum so many bytes; what goes to several ranks is copied together first."""
    kind, axis = total
    if kind == "reduce_scatter":
        _pack(emit, linear, size_bytes)
    return emit.start(kind, axis, size_bytes)


def _left(size_bytes: int, linear: Linear, total: Sum) -> int:
    """Return how much of so many bytes a rank has when they are summed."""
    kind, _ = total
    x = linear.output_size if linear.transposed else linear.contraction_size
    return size_bytes // x if kind == "reduce_scatter" else size_bytes


def _gather(emit: Emitter, linear: Linear, size_bytes: int) -> None:
    """Gather over x what was divided: so many bytes in all."""
    emit.collective("all_gather", "x", size_bytes)
    _pack(emit, linear, size_bytes)


def _pack(emit: Emitter, linear: Linear, size_bytes: int) -> None:
    """Copy columns that travel."""
    if linear.packed:
        emit.compute("sort", Memory(2.0 * size_bytes, work="copy"))


def _frozen_backward(
    emit: Emitter, job: FourDJob, linear: Linear, tokens: int, input_again: Callable[[], None], *, first: bool
) -> None:
    """Backward of a weight that does not train: no gradient of its own, those of its adapters if it has any.

    Only these want what it read.
    """
    beside = adapters.adapters_of(job, linear)
    emit.compute("input_gradient", Gemm(tokens, linear.k_local, linear.n_local, "NN", element_bytes=job.element_bytes))
    if beside is not None:
        adapters.input_gradient(emit, job, beside, tokens)
    reduced = ""
    if linear.output_size > 1:
        reduced = emit.start("all_reduce", linear.output_axis, tokens * linear.k_local * job.element_bytes)
        if not job.overlap.all_reduce:
            emit.wait(reduced)
    if beside is not None:
        input_again()
        adapters.weight_gradient(emit, job, beside, tokens, first=first)
    if reduced and job.overlap.all_reduce:
        emit.wait(reduced)


def _bias_fused(job: FourDJob, linear: Linear) -> bool:
    """Whether the element-wise op that follows adds the bias; none follows qkv."""
    return job.fused_elementwise and linear.name != "qkv"


def _bias_gradient(emit: Emitter, job: FourDJob, linear: Linear, tokens: int) -> None:
    if linear.layer is not None and job.model.has_bias(linear.name):
        read = float(tokens * linear.bias_elements * job.element_bytes)
        emit.compute("bias_gradient", work.bias_gradient(read))
