"""What engines are given, and what they give back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from twin.engine.links import Transfer
from twin.engine.rows import Row
from twin.engine.times import Times


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
    """[op][group class of its communicator]: factors on collectives' times; none if absent."""
    core_use: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    """What each rank class demands of the cores it shares while it computes; empty: it has its own."""
    cores: frozenset[int] = frozenset()
    """Which resources are cores."""
    quiet: frozenset[str] = frozenset()
    """Communicators whose ops neither slow compute nor are slowed by it: copy engines, the host and its drives do them,
    none of the device's units."""
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
    """When each op of the rank classes of one role ran, seconds, arrays (rank classes, ops).

    For a wait: from when the stream came to it until it could go on. `arrival` is when the
    stream came to a collective; `start` when its last member had.
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    arrival: NDArray[np.float64]
    share: NDArray[np.float64]
    """Of the speed that a collective's transfer could have had, how much links let it have."""
    passed_over: PassedOver | None = field(default=None, kw_only=True)
    """What brings nothing new, if that is known."""

    @property
    def step_seconds(self) -> float:
        """Last end minus first start."""
        return float(self.end.max()) if self.end.size else 0.0

    @cached_property
    def rows(self) -> Sequence[Row]:
        """What each of the rank classes did; what is known of segments is not written out."""
        ops = np.arange(self.start.shape[1])
        columns = zip(self.start, self.end, self.arrival, self.share, strict=True)
        return [Row(ops, Times(*column)) for column in columns]


class TimelineOfRows(Timeline):
    """The same, its arrays written out when somebody asks for them."""

    def __init__(self, rows: Sequence[Row], length: int, passed_over: PassedOver | None = None) -> None:
        """Take the rows of programs with so many ops."""
        self.__dict__.update(rows=rows, _length=length, passed_over=passed_over)

    @cached_property
    def _dense(self) -> list[NDArray[np.float64]]:
        dense = [row.dense(self.__dict__["_length"]) for row in self.rows]
        columns = zip(*((each.start, each.end, each.arrival, each.share) for each in dense), strict=True)
        return [of[0][None, :] if len(of) == 1 else np.stack(of) for of in columns]

    @property
    def start(self) -> NDArray[np.float64]:
        """See above."""
        return self._dense[0]

    @property
    def end(self) -> NDArray[np.float64]:
        """See above."""
        return self._dense[1]

    @property
    def arrival(self) -> NDArray[np.float64]:
        """See above."""
        return self._dense[2]

    @property
    def share(self) -> NDArray[np.float64]:
        """See above."""
        return self._dense[3]

    @property
    def step_seconds(self) -> float:
        """Last end minus first start."""
        return max((row.end for row in self.rows), default=0.0)
