"""What engines are given, and what they give back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from twin.engine.links import Transfer
from twin.engine.rows import Row
from twin.engine.times import Floats, Times
from twin.engine.turns import Turns


@dataclass(frozen=True)
class Setting:
    """What the engine needs besides the program: who meets whom, and at which price.

    `group_class[communicator][rank class]` is the group class a rank class belongs to, NOWHERE if none;
    `members[communicator][group class]` are the rank classes in it;
    `transfers[call][group class]` the price; `slowness[rank class]` multiplies compute time.
    """

    group_class: dict[str, list[int]]
    members: dict[str, list[tuple[int, ...]]]
    transfers: list[list[Transfer]]
    capacity: list[float]
    slowness: list[float]
    compute_slowdown: float
    collective_slowdown: float
    compute_factor: list[list[float]] | None = None
    """[op][rank class]: further factors on compute time; none if absent."""
    collective_factor: list[list[float]] | None = None
    """[op][rank class]: factors on the time of the collective that the op starts; none if absent."""
    core_use: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    """What each rank class demands of the cores it shares while it computes; empty: it has its own."""
    cores: frozenset[int] = frozenset()
    """Which resources are cores."""
    turns: Turns = field(default_factory=Turns)
    """How ranks take turns on them."""
    at_once: int = 1
    """Collectives of a communicator that run at once; the others wait for them, in order."""
    quiet: frozenset[str] = frozenset()
    """Communicators whose ops neither slow compute nor are slowed by it (`twin.engine.quiet`)."""
    role: list[int] = field(default_factory=list)
    """Which of the programs each rank class runs; empty: there is one."""


@dataclass(frozen=True)
class PassedOver:
    """A stretch of a step in which all ranks do again, a period after the other, what they did in the one before it."""

    begin: float
    end: float
    period: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin


@dataclass(frozen=True)
class Timeline:
    """When each op of the rank classes of one role ran, seconds.

    `start`, `end`, `arrival` and `share` are arrays (rank classes, ops), written out when somebody asks for them. For a
    wait: from when the stream came to it until it could go on. `arrival` is when the stream came to a collective;
    `start` when its last member had; `share` is how much of the speed that its transfer could have had links let it
    have.
    """

    rows: Sequence[Row]
    """What each of the rank classes did; what is known of segments is not written out."""
    length: int
    """Ops of the program."""
    passed_over: PassedOver | None = None
    """What brings nothing new, if that is known."""
    _written: tuple[Floats, ...] | None = field(default=None, repr=False)
    """The arrays, where they were there first."""

    @classmethod
    def of(cls, start: Floats, end: Floats, arrival: Floats, share: Floats) -> Timeline:
        """Take arrays (rank classes, ops)."""
        columns = (start, end, arrival, share)
        ops = np.arange(start.shape[1])
        rows = [Row(ops, Times(*row)) for row in zip(*columns, strict=True)]
        return cls(rows, start.shape[1], _written=columns)

    @cached_property
    def _columns(self) -> tuple[Floats, ...]:
        if self._written is not None:
            return self._written
        dense = [row.dense(self.length) for row in self.rows]
        columns = zip(*((each.start, each.end, each.arrival, each.share) for each in dense), strict=True)
        return tuple(of[0][None, :] if len(of) == 1 else np.stack(of) for of in columns)

    @property
    def start(self) -> Floats:
        """See above."""
        return self._columns[0]

    @property
    def end(self) -> Floats:
        """See above."""
        return self._columns[1]

    @property
    def arrival(self) -> Floats:
        """See above."""
        return self._columns[2]

    @property
    def share(self) -> Floats:
        """See above."""
        return self._columns[3]

    @property
    def step_seconds(self) -> float:
        """Last end minus first start."""
        return max((row.end for row in self.rows), default=0.0)
