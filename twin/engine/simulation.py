"""A simulated step: which ops ran when on each class of ranks, and what they were priced at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from twin.description.grid import Mesh
from twin.description.job import Job
from twin.engine.layout import Ints
from twin.engine.pricing import Prices
from twin.engine.program import Program
from twin.engine.rows import distinct_seconds
from twin.engine.setting import Timeline
from twin.engine.symmetry import Partition
from twin.engine.times import Floats
from twin.schedule.communicator import Communicator, Role, spanned
from twin.strategies import strategy_of


@dataclass(frozen=True)
class Part:
    """What the ranks of one role did."""

    role: Role
    program: Program
    classes: Ints
    """Numbers of the rank classes that run it, in the order of the timeline's rows."""
    timeline: Timeline

    @cached_property
    def distinct_seconds(self) -> Floats:
        """How long each distinct op of the program runs in all, (rank classes, distinct ops)."""
        return distinct_seconds(self.program, self.timeline.rows)


@dataclass(frozen=True)
class Simulation:
    """One simulated step."""

    job: Job
    communicators: Mapping[str, Communicator]
    parts: tuple[Part, ...]
    """One for each role."""
    partition: Partition
    prices: Prices
    slowness: Floats
    """(rank classes,): factor on the compute time of each class."""
    typical_slowness: float
    """Factor on compute time that all ranks share, because they wait for the slowest device."""
    global_links_left_out: bool = False
    """Whether contention on the links between dragonfly groups was left out to keep classes few."""
    clock: float = 1.0
    """Share of the full clock that a power cap leaves."""

    @cached_property
    def step_seconds(self) -> float:
        """Last rank's end minus first rank's start."""
        return max(part.timeline.step_seconds for part in self.parts)

    @property
    def mesh(self) -> Mesh:
        """The axes that the ranks are cut into."""
        return strategy_of(self.job).mesh(self.job)

    @property
    def axes(self) -> tuple[str, ...]:
        """What collectives' time is booked under: the mesh's axes, then what else communicators have."""
        return tuple(dict.fromkeys([*self.mesh.axes, *(c.axis for c in self.communicators.values())]))

    @property
    def wider(self) -> dict[str, tuple[str, ...]]:
        """Axes whose collectives run over groups of other axes too, as gradients over data and context; and which."""
        mesh = self.mesh
        own = {c.name: spanned(mesh, c) for c in self.communicators.values() if c.name in mesh.axes}
        return {name: axes for name, axes in own.items() if axes not in ((), (name,))}

    @property
    def ops(self) -> int:
        """Ops of all programs."""
        return sum(len(part.program) for part in self.parts)

    @property
    def only(self) -> Part:
        """The one role's part, where all ranks run the same program; ValueError elsewhere."""
        (part,) = self.parts
        return part

    @property
    def program(self) -> Program:
        """The one program, where all ranks run the same."""
        return self.only.program

    @property
    def timeline(self) -> Timeline:
        """The one timeline, where all ranks run the same program."""
        return self.only.timeline
