"""Weights on their way to where they are computed with: when a gather starts, and what it costs beside the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.strategies.fetch import Fetches
from twin.strategies.fsdp.groups import Groups
from twin.strategies.fsdp.job import FsdpJob
from twin.strategies.fsdp.units import Unit, part

UNITS_AHEAD = 1
"""FSDP gathers one unit ahead: forward the host's lead does it, or it asks for the next one as backward, as soon as it
has its own (of the older one: BACKWARD_PRE, the default)."""


@dataclass
class Gathers:
    """All-gathers of one pass over the model, in execution order."""

    job: FsdpJob
    order: Sequence[tuple[Emitter, Unit]]
    backward: bool = False
    _started: list[str] = field(default_factory=list)
    _arrived: int = 0
    _fetches: Fetches | None = None
    """Own parts of weights on their way from where they lie."""

    def __post_init__(self) -> None:
        offload, grid = self.job.offload, self.job.concrete_grid
        if offload is not None and offload.parameters is not None:
            size = self.job.element_bytes
            parts = [(e.under(_leaf(unit)), float(size * part(unit.elements, grid.weights))) for e, unit in self.order]
            self._fetches = Fetches(offload.parameters, parts, "weights_up")

    @property
    def split(self) -> bool:
        """Whether weights are cut at all."""
        return self.job.concrete_grid.weights > 1

    @property
    def second(self) -> bool:
        """Whether this pass gathers from the second copy."""
        return self.backward and self.job.secondary is not None

    @property
    def quantized(self) -> bool:
        """Whether what is gathered comes in 8 bits."""
        return self.job.quantized_weights and not self.second

    def use(self, name: str) -> None:
        """Make a unit available to the next op, by its name; units come in the order of the pass."""
        if self._arrived == len(self.order) or self.order[self._arrived][1].name != name:
            return
        if not self.split:
            if self._fetches is not None:
                self._fetches.use(self._arrived)
                self._arrived += 1
            return
        self._start_until(self._arrived + 1)
        emit, unit = self.order[self._arrived]
        emit.wait(self._started[self._arrived])
        if self.job.flavour == "fsdp2":  # whose next gather waits for the copy
            self._unpack(emit, unit)
            self._start_ahead()
        elif self.job.waits_for_gathers:
            self._copy_parts(emit, unit)
        else:
            self._start_ahead()
            self._unpack(emit, unit)
        self._arrived += 1

    def end(self) -> None:
        """The pass is over: every unit of it was used, in this order."""
        if self.split or self._fetches is not None:
            assert self._arrived == len(self.order), f"{self.order[self._arrived][1].name} was not used in its turn"

    def begin(self) -> None:
        """Start the first gather of the pass."""
        if self._fetches is not None:
            self._fetches.begin()
        if self.split and self.order and not self.job.waits_for_gathers:
            self._start_until(1)

    def _start_ahead(self) -> None:
        """Ask for what comes next: of DeepSpeed's so many elements, but one unit at least."""
        if self.job.flavour != "deepspeed":
            self._start_until(self._arrived + 1 + UNITS_AHEAD)
            return
        most, ahead, end = self.job.prefetch, 0, self._arrived + 1
        while end < len(self.order) and ahead < most:
            ahead += self.order[end][1].elements
            end += 1
        self._start_until(end)

    def _start_until(self, end: int) -> None:
        groups = Groups.of(self.job)
        for number, (emit, unit) in enumerate(self.order[len(self._started) : end], len(self._started)):
            if self._fetches is not None:
                self._fetches.use(number)
            here = emit.under(_leaf(unit))
            element_bytes = 1 if self.quantized else self.job.element_bytes
            if self.quantized:
                own = part(unit.elements, self.job.concrete_grid.weights)
                moved = float(own * (self.job.element_bytes + 1))
                here.compute("quantize", Memory(moved, work="quantize"))
            size = unit.padded(self.job.concrete_grid.weights) * element_bytes
            self._started.append(here.start("all_gather", groups.secondary if self.second else groups.gather, size))

    def _unpack(self, emit: Emitter, unit: Unit) -> None:
        """What is done with a gathered unit before it is of use."""
        here = emit.under(_leaf(unit))
        e = self.job.element_bytes
        if self.quantized:
            here.compute("dequantize", Memory(float(unit.elements * (1 + e)), work="quantize"))
        elif self.job.flavour == "fsdp2":  # parameters lie in pieces, rank by rank
            here.compute("copy_out", Memory(2.0 * unit.padded(self.job.concrete_grid.weights) * e, work="copy"))

    def _copy_parts(self, emit: Emitter, unit: Unit) -> None:
        """Out of what a list of parts was gathered into, part by part, and from there into the weight."""
        ranks = self.job.concrete_grid.weights
        moved = 4.0 * unit.padded(ranks) * self.job.element_bytes
        emit.under(_leaf(unit)).compute("copy_parts", Memory(moved, kernels=ranks + 1, work="copy"))


def _leaf(unit: Unit) -> str:
    """What a unit is called below the block that it is in."""
    return unit.name.rpartition("/")[2] if "/" in unit.name else "weights"
