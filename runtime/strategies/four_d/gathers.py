"""Weights gathered over z: when each all-gather starts, who waits for it, how long it is kept.

A *unit* is what one all-gather carries: the weight of one linear, or all weights of a block
(fewer, larger messages: what gloo likes). A pass over the model (forward, the recomputation of a
block, its backward) announces its units in execution order; when the pass comes to a unit, the gathers
of the next `depth` units are started before its own is waited for.

Gradients go the other way: one reduce-scatter a unit. So many may be in flight, then the oldest is
waited for, which frees its buffers; the last ones at the end of the backward pass. What is waited for when
depends on the order of the ops alone, never on how fast a collective was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from runtime.parallel.collectives import Collectives, Handle
from runtime.parallel.ops import Place
from runtime.strategies.four_d.updated import UpdatedWeights
from runtime.weights.store import Parameter
from twin.schedule.kernels import Memory
from twin.schedule.ops import Phase


@dataclass(eq=False)
class Unit:
    """Weights that are gathered, and whose gradients are scattered, together."""

    place: Place
    members: list[Parameter] = field(default_factory=list)
    keep: bool = False
    """Keep the gathered weights from forward to backward."""

    @property
    def stored(self) -> int:
        """Elements a rank stores; members lie one after the other in the store."""
        return sum(member.shard.stored for member in self.members)


@dataclass
class WeightGathers:
    """The gathered weights of one rank."""

    collectives: Collectives
    updated: UpdatedWeights
    """Where what is gathered, or used as it is, may still be on its way from the replicas that have updated it."""
    depth: int | None
    """How many units ahead gathers start; None without overlap."""
    most_in_flight: int
    """Reduce-scatters in flight before the oldest is waited for; 0: each where it starts (no ORS)."""
    compute_type: torch.dtype
    """Of the weights that layers compute with."""
    scatter_type: torch.dtype
    """Of gradients on their way."""
    source: torch.Tensor | None = None
    """The store's flat buffer whose shards are gathered: what layers compute with, or the master weights."""
    _units: dict[int, Unit] = field(default_factory=dict)
    _full: dict[int, torch.Tensor] = field(default_factory=dict)
    _flight: dict[int, Handle] = field(default_factory=dict)
    _order: Sequence[Unit] = ()
    _position: dict[int, int] = field(default_factory=dict)
    _next: int = 0
    _phases: Sequence[Phase] = ()
    _gradients: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)
    _scatters: deque[tuple[Unit, Handle]] = field(default_factory=deque)
    scattered: int = 0
    """Reduce-scatters started so far, in all steps."""
    _holding: bool = False
    held: dict[int, torch.Tensor] = field(default_factory=dict)
    """Gradients of weights that the first half of a micro-step has made, to which the second adds its own."""

    z: int = field(init=False)
    """Pieces a weight is cut into."""

    def __post_init__(self) -> None:
        self.z = self.collectives.mesh.grid.size("z")

    def register(self, unit: Unit) -> None:
        """Make the members of a unit known."""
        for member in unit.members:
            self._units[id(member)] = unit

    def begin(self, *parts: tuple[Sequence[Unit], Phase]) -> None:
        """Begin a pass over units in this order, each part of it in its phase, and start the first gathers."""
        if self.z == 1:
            return
        self._order = [unit for units, _ in parts for unit in units]
        self._phases = [phase for units, phase in parts for _ in units]
        self._next = 0
        self._position = {id(unit): index for index, unit in enumerate(self._order)}
        if self.depth is not None:
            self._start_until(self.depth)

    def use(self, parameter: Parameter, phase: Phase) -> torch.Tensor:
        """Return the gathered weight (n/G_o, k/G_c)."""
        if self.z == 1:
            self.updated.need(parameter)
            return parameter.local
        held = self._full.get(id(parameter))
        if held is None:
            unit = self._units[id(parameter)]
            if (index := self._position.get(id(unit))) is not None:
                self._start_until(index + 1 + (self.depth or 0))
            if id(unit) not in self._flight:
                self._start(unit, phase)
            self._arrive(unit, phase)
            held = self._full[id(parameter)]
        return held

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep every gathered weight: passes follow that do not change any."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
            self._full.clear()

    def release(self, parameter: Parameter, *, after_forward: bool = False) -> None:
        """Drop a gathered weight, unless it is kept for the backward pass."""
        if not self._full or self._holding or (after_forward and self._units[id(parameter)].keep):
            return
        self._full.pop(id(parameter), None)

    def _start_until(self, end: int) -> None:
        while self._next < min(end, len(self._order)):
            unit = self._order[self._next]
            if id(unit) not in self._flight and not self._stays(unit):
                self._start(unit, self._phases[self._next])
            self._next += 1

    def _stays(self, unit: Unit) -> bool:
        """Whether a unit is there and is not dropped: what the second half has yet to use, it drops."""
        return (unit.keep or self._holding) and all(id(member) in self._full for member in unit.members)

    def _start(self, unit: Unit, phase: Phase) -> None:
        assert self.source is not None
        self.updated.need(unit.members[0])
        first = unit.members[0].start
        shard = self.source[first : first + unit.stored]
        self._flight[id(unit)] = self.collectives.all_gather(unit.place, "z_gather", shard, phase=phase)

    def _arrive(self, unit: Unit, phase: Phase) -> None:
        full = self._flight.pop(id(unit)).wait()
        full = self._turned(unit, "round", full, self.compute_type, phase).view(self.z, unit.stored)
        parts = full.split([member.shard.stored for member in unit.members], 1)
        # of one weight the pieces lie in order; of several they are interleaved and copied
        flat = [part.reshape(-1) for part in parts] if len(parts) == 1 else self._sorted(unit, parts, phase)
        for member, weight in zip(unit.members, flat, strict=True):
            shape = member.shard.local_shape
            self._full[id(member)] = weight[: shape[0] * shape[1]].view(shape)

    def _sorted(self, unit: Unit, parts: Sequence[torch.Tensor], phase: Phase) -> list[torch.Tensor]:
        """Copy the pieces of each of several weights together."""
        return self.collectives.ops.compute(
            unit.place,
            "sort",
            lambda: self._copied(parts),
            lambda: Memory(2.0 * sum(part.nbytes for part in parts), work="copy"),
            phase=phase,
        )

    def _copied(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        sizes = [part.numel() for part in parts]
        flat = list(self.collectives.buffers.take(sum(sizes), parts[0]).split(sizes))
        for target, part in zip(flat, parts, strict=True):
            target.view(part.shape).copy_(part)
        return flat

    def _mixed(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        flat = self.collectives.buffers.take(sum(gradient.numel() for gradient in gradients), gradients[0])
        return torch.cat(list(gradients), dim=1, out=flat.view(self.z, -1))

    def scatter(self, parameter: Parameter, gradient: torch.Tensor) -> None:
        """Send a weight's gradient (n/G_o, k/G_c) on its way to the ranks that store it."""
        if self.z == 1:
            raise ValueError("nothing to scatter over one rank")
        unit = self._units[id(parameter)]
        waiting = self._gradients.setdefault(id(unit), {})
        waiting[id(parameter)] = gradient
        if len(waiting) < len(unit.members):
            return
        gradients = [self._cut(member, waiting[id(member)]) for member in unit.members]
        del self._gradients[id(unit)]
        full = gradients[0]
        if len(gradients) > 1:
            full = self.collectives.ops.compute(
                unit.place,
                "mix",
                lambda: self._mixed(gradients),
                lambda: Memory(2.0 * sum(gradient.nbytes for gradient in gradients), work="copy"),
                phase="bwd",
            )
        full = self._turned(unit, "widen", full.reshape(-1), self.scatter_type, "bwd")
        handle = self.collectives.reduce_scatter(unit.place, "z_scatter", full, phase="bwd")
        self._scatters.append((unit, handle))
        self.scattered += 1
        self.finish_scatters(until=self.scattered - self.most_in_flight)

    def _turned(self, unit: Unit, name: str, flat: torch.Tensor, wanted: torch.dtype, phase: Phase) -> torch.Tensor:
        """Return what a unit carries in another type, if it is not of that already."""
        if flat.dtype == wanted:
            return flat
        moved = float(flat.numel() * (flat.element_size() + wanted.itemsize))
        return self.collectives.ops.compute(
            unit.place, name, lambda: flat.to(wanted), lambda: Memory(moved, work=name), phase=phase
        )

    def _cut(self, member: Parameter, gradient: torch.Tensor) -> torch.Tensor:
        flat = gradient.reshape(-1)
        padding = member.shard.gathered - flat.numel()
        if padding:
            flat = torch.nn.functional.pad(flat, (0, padding))
        return flat.view(self.z, member.shard.stored)

    def finish_scatters(self, until: int | None = None) -> None:
        """Wait for reduce-scatters in flight and add what arrives to the gradients.

        With `until`, only for the first so many of all that `scattered` counts.
        """
        while self._scatters and (until is None or self.scattered - len(self._scatters) < until):
            self._deliver(*self._scatters.popleft())

    def end_micro_step(self) -> None:
        """Forget every gathered weight: the optimizer is about to change them."""
        self.finish_scatters()
        self._full.clear()

    def _deliver(self, unit: Unit, handle: Handle) -> None:
        """Add a unit's scattered gradient to its members' sums."""
        sizes = [member.shard.stored for member in unit.members]
        parts = list(zip(unit.members, handle.wait().split(sizes), strict=True))

        def accumulate() -> None:
            for member, part in parts:
                member.accumulate(part)

        self.collectives.ops.compute(
            unit.place,
            "accumulate",
            accumulate,
            lambda: Memory(sum(member.accumulation(part) for member, part in parts), work="accumulate"),
            phase="bwd",
        )
