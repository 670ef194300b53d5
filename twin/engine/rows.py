"""What one class of ranks did: ops one by one where they were walked so, and whole segments where these say it all.

A pipeline of 64 stages and 512 micro-batches has five million ops, in a hundred thousand passes of which a few dozen
differ. A segment (`twin.engine.segment`) that nothing ran beside takes as long whenever it begins, and so do its ops:
when it began says everything. What is summed up is summed up once a segment; every op is written out (`Row.dense`) for
those alone who want to see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twin.engine.program import Program
from twin.engine.segment import Segment
from twin.engine.times import Floats, Ints, Times


@dataclass(frozen=True)
class Occurrences:
    """A segment with nothing beside it, each time that a class of ranks went through it."""

    segment: Segment
    firsts: Ints
    """(times,): its first op in the program."""
    begins: Floats
    """(times,): when it began, seconds."""

    @property
    def ops(self) -> Ints:
        """Numbers of its ops in the program, (times, ops)."""
        found: Ints = self.firsts[:, None] + np.arange(len(self.segment.code))
        return found

    @property
    def times(self) -> Times:
        """When its ops ran, (times × ops,)."""
        begins, alone = self.begins[:, None], self.segment.times
        start, end, arrival = ((begins + each).ravel() for each in (alone.start, alone.end, alone.arrival))
        return Times(start, end, arrival, np.tile(alone.share, len(begins)))


@dataclass(frozen=True)
class Row:
    """What one class of ranks did in a step; each op of its program is in one of the two parts."""

    ops: Ints
    """Ops that are known one by one, ascending."""
    times: Times
    """When these ran."""
    segments: tuple[Occurrences, ...] = ()
    """All others."""

    @cached_property
    def once(self) -> Ints:
        """Numbers of the ops of all segments in the program, the first time each, one segment behind the other."""
        if not self.segments:
            return np.zeros(0, dtype=np.int64)
        sizes = [len(each.segment.code) for each in self.segments]
        behind = np.cumsum(sizes)
        shifts = np.array([each.firsts[0] for each in self.segments]) - (behind - sizes)
        found: Ints = np.arange(behind[-1]) + np.repeat(shifts, sizes)
        return found

    def each_once(self, of: NDArray[Any]) -> Iterator[tuple[Occurrences, NDArray[Any]]]:
        """Yield all segments, each with its part of a column of the ops in `once`."""
        begin = 0
        for each in self.segments:
            end = begin + len(each.segment.code)
            yield each, of[begin:end]
            begin = end

    def of(self, ops: Ints) -> Ints:
        """Return where in `times` such ops are, which must be known one by one."""
        return ops if len(self.segments) == 0 else np.searchsorted(self.ops, ops)

    @property
    def end(self) -> float:
        """When the last op ended."""
        ends = [float(each.begins.max()) + each.segment.seconds for each in self.segments]
        return max([*ends, float(self.times.end.max(initial=0.0))])

    def dense(self, length: int) -> Times:
        """Write out when every op of a program of such a length ran."""
        if not self.segments:
            return self.times
        found = Times(*(np.empty(length) for _ in range(4)))
        parts = [(self.ops, self.times), *((each.ops.ravel(), each.times) for each in self.segments)]
        for ops, times in parts:
            for column in ("start", "end", "arrival", "share"):
                getattr(found, column)[ops] = getattr(times, column)
        return found


def distinct_seconds(program: Program, rows: Sequence[Row]) -> Floats:
    """Return how long each distinct op of a program runs in all its occurrences, (rows, distinct ops)."""
    which, found = np.asarray(program.ops.which), np.zeros((len(rows), len(program.ops.distinct)))

    def add(number: int, ops: Ints, seconds: Floats) -> None:
        found[number] += np.bincount(which[ops], weights=seconds, minlength=found.shape[1])

    for number, row in enumerate(rows):
        add(number, row.ops, row.times.end - row.times.start)
        if row.segments:
            several = [len(each.begins) * each.segment.op_seconds for each in row.segments]
            add(number, row.once, np.concatenate(several))
    return found
