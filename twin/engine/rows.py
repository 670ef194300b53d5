"""What one class of ranks did: ops one by one where they were walked so, and whole segments where these say it all.

A pipeline of 64 stages and 512 micro-batches has five million ops, in a hundred thousand passes of which a few dozen
differ. A segment (`twin.engine.segment`) that nothing ran beside takes as long whenever it begins, and so do its ops:
when it began says everything. What is summed up is summed up once a segment; every op is written out (`Row.dense`) for
those alone who want to see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    def representative(self) -> Ints:
        """Numbers of its ops in the program, (ops,), the first time."""
        found: Ints = self.firsts[0] + np.arange(len(self.segment.code))
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
    which, count = np.asarray(program.ops.which), len(program.ops.distinct)

    def of(ops: Ints, times: Times) -> Floats:
        return np.bincount(which[ops], weights=times.end - times.start, minlength=count).astype(np.float64)

    found = np.zeros((len(rows), count))
    for number, row in enumerate(rows):
        found[number] = of(row.ops, row.times)
        for each in row.segments:
            found[number] += len(each.begins) * of(each.representative, each.segment.times)
    return found
