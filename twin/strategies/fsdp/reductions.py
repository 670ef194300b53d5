"""Gradients on their way to the ranks that keep them."""

from __future__ import annotations

from dataclasses import dataclass, field

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.schedule.ops import axis_of
from twin.strategies.fsdp.groups import Groups
from twin.strategies.fsdp.job import FsdpJob
from twin.strategies.fsdp.units import Unit, part
from twin.strategies.offload import GradientFlush, flush_of
from twin.strategies.sizes import FP32_BYTES, accumulated_bytes


@dataclass
class Reductions:
    """The reductions of one micro-step.

    FSDP reduces unit by unit; before it packs the next one it waits for the one before; on a CPU, which has no streams,
    it waits for each. DeepSpeed fills buckets, and unless it overlaps waits for each.
    """

    job: FsdpJob
    own: int
    """Elements that a rank updates."""
    first: bool
    """The step's first micro-step: sums are written, not added to."""
    last: bool
    number: int = 0
    _open: int = 0
    _flight: list[tuple[Emitter, str, int, bool]] = field(default_factory=list)
    """Where, the name of the collective, elements that it brings, and whether they are complete then."""
    _started: list[tuple[Emitter, str, int]] = field(default_factory=list)
    """All-reduces and the like that follow, waited for at the end; elements that are added to sums then."""
    _flush: GradientFlush | None = None
    """Their way to the host, where optimizer states lie there."""

    def __post_init__(self) -> None:
        if self.job.flavour == "deepspeed":  # elsewhere gradients stay on the device until the update
            self._flush = flush_of(self.job, self.job.offload, self.own)

    @property
    def groups(self) -> Groups:
        """Who talks with whom."""
        return Groups.of(self.job)

    @property
    def reduces(self) -> bool:
        """Whether gradients leave the rank in this micro-step."""
        grid, job = self.job.concrete_grid, self.job
        if grid.replicas == 1:
            return self._flush is not None
        if self.at_end:
            return self.last
        return self.last or job.accumulate == "sharded"

    @property
    def at_end(self) -> bool:
        """DeepSpeed's ZeRO-1 keeps gradients whole, and reduces after the last micro-step's whole backward pass."""
        whole = self.job.flavour == "deepspeed" and self.job.concrete_grid.gradient_parts == 1
        return whole and self._flush is None

    @property
    def whole(self) -> bool:
        """Whether what leaves is the whole sum of all micro-steps, which was kept so far (`no_sync`)."""
        job = self.job
        return job.flavour != "deepspeed" and job.accumulate == "whole" and self.last and not self.first

    def ready(self, emit: Emitter, unit: Unit) -> None:
        """Go on from the gradients of a unit, which the backward pass has finished."""
        e, elements = self.job.element_bytes, unit.elements
        if not self.reduces:
            if not self.first or self.job.flavour != "deepspeed":
                wide = self.job.kept_bytes
                if self.job.concrete_grid.replicas == 1 and self.job.flavour == "fsdp2":
                    wide = FP32_BYTES  # nothing is reduced: gradients go into their sums
                moved = float(elements * (e + (1 if self.first else 2) * wide))
                emit.compute("accumulate", Memory(moved, work="accumulate"))
            return
        if self.job.flavour == "deepspeed":
            if self.at_end and not self.first:
                emit.compute("accumulate", Memory(3.0 * elements * e, work="accumulate"))
            self._open += elements
            while self._open >= (most := self.job.bucket) and not self.at_end:
                self._reduce(emit, most)
                self._open -= most
            return
        if self.whole:
            moved = float(elements * (e + 2 * self.job.kept_bytes))
            emit.compute("accumulate", Memory(moved, work="accumulate"))
        self._finish_flight()
        self._reduce(emit, elements, unit.padded(self.job.concrete_grid.gradient_parts))

    def end(self, emit: Emitter) -> None:
        """Send what is left, and wait for everything."""
        most = self.job.bucket
        while self._open:
            self._reduce(emit, min(most, self._open))
            self._open -= min(most, self._open)
        self._finish_flight()
        self._finish_started()
        if self._flush is not None:
            self._flush.end()

    def _finish_started(self) -> None:
        """Wait for what followed."""
        for each, name, elements in self._started:
            each.wait(name)
            if elements:
                self._accumulate(each, elements)
        self._started.clear()

    def _reduce(self, emit: Emitter, elements: int, padded: int | None = None) -> None:
        """Pack gradients and send them, with what pads them."""
        job, wide = self.job, self.job.reduce_bytes
        here = emit.under(f"bucket{self.number}")
        self.number += 1
        sent = elements if padded is None else padded
        read = job.kept_bytes if self.whole else job.element_bytes
        here.compute("pack", Memory(float(elements * read + sent * wide), work="accumulate"))
        elements = sent
        grid = job.concrete_grid
        everyone = job.flavour == "deepspeed" and grid.weights == 1 and job.all_reduce_buckets
        everyone = everyone or job.waits_for_gathers
        if everyone:
            name = here.start("all_reduce", self.groups.replicas, elements * wide)
            arriving = part(elements, grid.gradient_parts)
        elif job.quantized_gradients:
            self._quantized(here, elements)
            return
        elif grid.gradient_parts > 1:
            name = here.start("reduce_scatter", self.groups.scatter, elements * wide)
            arriving = part(elements, grid.gradient_parts)
        else:
            self._arrived(here, elements, complete=False)
            return
        self._flight.append((here, name, arriving, everyone))
        if not self.job.overlaps_reduction:
            self._finish_flight()
            self._finish_started()

    def _finish_flight(self) -> None:
        """Wait for what is under way; what it brings goes on over the other axes, and into the sums."""
        for here, name, arriving, complete in self._flight:
            here.wait(name)
            self._arrived(here, arriving, complete=complete)
        self._flight.clear()

    def _arrived(self, here: Emitter, elements: int, *, complete: bool) -> None:
        if self._flush is not None:
            if not complete:
                self._rest(here, elements)
                self._finish_started()
            own = part(elements, self.job.concrete_grid.optimizer)
            self._flush.arrived(here, own, first=self.first, last=self.last)
            return
        if self.job.flavour == "fsdp2" and self.job.concrete_grid.data > 1 and self.job.concrete_grid.optimizer == 1:
            # what replicas have is summed before it is added to what was there
            name = here.start("all_reduce", self.groups.data, elements * self.job.reduce_bytes)
            self._started.append((here, name, elements))
            return
        if self.job.flavour != "deepspeed" or not (self.first or self.at_end):
            self._accumulate(here, elements)
        if not complete:
            self._rest(here, elements)

    def _accumulate(self, here: Emitter, elements: int) -> None:
        """Add what has come to its sums."""
        first = self.first or self.whole
        moved = float(elements * (self.job.reduce_bytes + FP32_BYTES * (1 if first else 2)))
        if self.job.flavour == "fsdp2":
            moved = accumulated_bytes(elements, self.job.reduce_bytes, first=first)
        here.compute("accumulate", Memory(moved, work="accumulate"))

    def _rest(self, here: Emitter, elements: int) -> None:
        """Sum over ranks that share optimizer states alone, or nothing."""
        grid, wide = self.job.concrete_grid, self.job.reduce_bytes
        if grid.optimizer > 1:
            self._started.append((here, here.start("reduce_scatter", self.groups.optimizer, elements * wide), 0))
        if grid.data > 1:
            own = part(elements, grid.optimizer)
            self._started.append((here, here.start("all_reduce", self.groups.data, own * wide), 0))

    def _quantized(self, here: Emitter, elements: int) -> None:
        """Two all-to-alls of 4 bits, with a sum after each (qgZ)."""
        wide, node = self.job.reduce_bytes, self.job.machine.devices_per_node
        for name, communicator, count in (
            ("inside", self.groups.inside, elements),
            ("between", self.groups.between, part(elements, node)),
        ):
            here.compute(f"quantize_{name}", Memory(count * (wide + 0.5), work="quantize"))
            here.collective("all_to_all", communicator, count * 0.5, f"{name}/all_to_all_{axis_of(communicator)}")
            here.compute(f"sum_{name}", Memory(count * (0.5 + wide), work="quantize"))
        self._arrived(here, part(elements, self.job.concrete_grid.gradient_parts), complete=False)
