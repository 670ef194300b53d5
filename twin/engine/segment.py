"""A segment: a stretch of ops that one class of ranks goes through alone, and how it goes when something runs beside.

There are two clocks, `alone` and `beside`; see `twin.engine.segments`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twin.engine.marks import Marks
from twin.engine.program import COMPUTE, START
from twin.engine.rows import Floats, Ints, Occurrences, Row, Times
from twin.engine.setting import Timeline
from twin.trace.metrics import Breakdown


@dataclass(frozen=True)
class Segment:
    """What a stretch of ops does when nothing else happens: seconds from its begin."""

    alone: Timeline
    """(1, ops)."""
    code: NDArray[np.int8]
    target: NDArray[np.int32]
    """Of a start its call, of a wait the start in the segment."""
    axes: tuple[str, ...]
    """What each call's time is booked under."""
    stretch: float
    host_seconds: float
    """Of all its ops."""
    lead_seconds: float
    """How far ahead the host must be at its begin, so that no op waits for it."""

    @cached_property
    def seconds(self) -> float:
        """How long it takes alone."""
        return self.alone.step_seconds

    @cached_property
    def times(self) -> Times:
        """When its ops run, (ops,)."""
        return self.alone.rows[0].times

    @cached_property
    def marks(self) -> Marks:
        """Its ops by what they are."""
        return Marks.of(self.code, self.target, self.axes)

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where its time goes."""
        return self.marks.breakdown(self.seconds, self.times)

    @cached_property
    def clocks(self) -> tuple[list[float], list[float]]:
        """Both clocks wherever one changes its pace: (alone, beside)."""
        start, end = self.alone.start[0], self.alone.end[0]
        computes, starts = self.code == COMPUTE, self.code == START
        edges = np.unique(np.concatenate([[0.0, self.seconds], start, end]))
        low, high = edges[:-1], edges[1:]

        def covered(chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
            """Which pieces lie inside one of some intervals."""
            begun = np.searchsorted(np.sort(start[chosen]), low, side="right")
            ended = np.searchsorted(np.sort(end[chosen]), low, side="right")
            inside: NDArray[np.bool_] = begun > ended
            return inside

        slower = covered(computes) & ~covered(starts)
        beside = np.concatenate([[0.0], np.cumsum((high - low) * np.where(slower, self.stretch, 1.0))])
        return edges.tolist(), beside.tolist()


def _other(at: float, own: Sequence[float], other: Sequence[float]) -> float:
    """Read the other clock when one shows a time."""
    number = min(max(bisect_right(own, at) - 1, 0), len(own) - 2)
    width = own[number + 1] - own[number]
    if width <= 0.0:
        return other[number]
    return other[number] + (at - own[number]) / width * (other[number + 1] - other[number])


class Run:
    """A segment on its way."""

    __slots__ = ("_at", "_since", "_slow", "marks", "segment")

    def __init__(self, segment: Segment, now: float, *, slow: bool) -> None:
        self.segment = segment
        self._since = now
        self._at = 0.0
        """What the clock `alone` shows."""
        self._slow = slow
        self.marks: list[tuple[float, float, bool]] = [(now, 0.0, slow)]
        """When the pace changed: now, the clock `alone`, whether something ran beside from then on."""

    def left_seconds(self) -> float:
        """How long it takes from now on, if nothing changes."""
        if not self._slow:
            return self.segment.seconds - self._at
        alone, beside = self.segment.clocks
        return beside[-1] - _other(self._at, alone, beside)

    def change(self, now: float, *, slow: bool) -> None:
        """Note that something begins or ends beside it."""
        passed = now - self._since
        if self._slow:
            alone, beside = self.segment.clocks
            self._at = _other(_other(self._at, alone, beside) + passed, beside, alone)
        else:
            self._at += passed
        self._at = min(self._at, self.segment.seconds)
        self._since, self._slow = now, slow
        self.marks.append((now, self._at, slow))

    def later(self, seconds: float) -> Run:
        """Return the same so much later."""
        run = Run(self.segment, self._since + seconds, slow=self._slow)
        run._at = self._at
        run.marks = [(now + seconds, at, slow) for now, at, slow in self.marks]
        return run


def times_of(runs: Sequence[Run], alone: Floats) -> Floats:
    """Say when something happened in some runs of a segment, (runs, things), that have changed their pace as often.

    It happens so many seconds after the begin if nothing else does.
    """
    own, beside = runs[0].segment.clocks
    slowed = np.interp(alone, own, beside)
    found = np.empty((len(runs), len(alone)))
    for number, marks in enumerate(zip(*(run.marks for run in runs), strict=True)):
        now, at, slow = (np.array(column)[:, None] for column in zip(*marks, strict=True))
        passed = np.where(slow, now + slowed - np.interp(at, own, beside), now + (alone - at))
        found = np.where(alone > at, passed, found) if number else passed
    return found


class Known:
    """The segments that a rank has gone through: their ops' times are written when all is over, if then."""

    def __init__(self) -> None:
        self._alone: dict[int, tuple[Segment, list[int], list[float]]] = {}
        """By segment: where it began, op and time, with nothing ever beside it."""
        self._unchanged: dict[int, tuple[Segment, list[int], list[float]]] = {}
        """The same of those with something beside them that did not slow them."""
        self._changed: dict[tuple[int, int], tuple[Segment, list[int], list[Run]]] = {}
        """The same of those that it did, by segment and number of changes."""

    def add(self, first: int, segment: Segment, begin: float, run: Run | None, *, alone: bool) -> None:
        """Note one that has ended, by its first op; if nothing was ever beside it, its begin says it all."""
        if run is not None:
            _, firsts, runs = self._changed.setdefault((id(segment), len(run.marks)), (segment, [], []))
            firsts.append(first)
            runs.append(run)
            return
        into = self._alone if alone else self._unchanged
        known = into.get(id(segment))
        if known is None:
            known = into[id(segment)] = (segment, [], [])
        known[1].append(first)
        known[2].append(begin)

    @property
    def counts(self) -> dict[tuple[int, Any], int]:
        """How many there are of each kind, for `again`."""
        found: dict[tuple[int, Any], int] = {(2, key): len(of[1]) for key, of in self._changed.items()}
        for number, kind in enumerate((self._alone, self._unchanged)):
            found |= {(number, key): len(of[1]) for key, of in kind.items()}
        return found

    def again(self, before: Mapping[tuple[int, Any], int], times: int, ops: int, seconds: float) -> None:
        """Add those since then so many times, each time so many ops and seconds later."""
        later = range(1, times + 1)
        for number, kind in enumerate((self._alone, self._unchanged)):
            for key, (_, firsts, begins) in kind.items():
                own = slice(before.get((number, key), 0), len(firsts))
                firsts += [first + ops * more for more in later for first in firsts[own]]
                begins += [begin + seconds * more for more in later for begin in begins[own]]
        for kinds, (_, firsts, runs) in self._changed.items():
            own = slice(before.get((2, kinds), 0), len(firsts))
            firsts += [first + ops * more for more in later for first in firsts[own]]
            runs += [run.later(seconds * more) for more in later for run in runs[own]]

    def row(self, ops: Ints, times: Times) -> Row:
        """Return what the rank did; these are the ops that it went through one by one."""
        parts, several = [ops], [times]
        for segment, firsts, begins in self._unchanged.values():
            occurrences = Occurrences(segment, np.array(firsts), np.array(begins))
            parts.append(occurrences.ops.ravel())
            several.append(occurrences.times)
        for segment, firsts, runs in self._changed.values():
            parts.append((np.array(firsts)[:, None] + np.arange(len(segment.code))).ravel())
            alone = segment.times
            start, end, arrival = (times_of(runs, each).ravel() for each in (alone.start, alone.end, alone.arrival))
            several.append(Times(start, end, arrival, np.tile(alone.share, len(firsts))))
        if len(parts) > 1:
            ops = np.concatenate(parts)
            order = np.argsort(ops)
            ops, times = ops[order], Times.joined(several)[order]
        known = (Occurrences(segment, np.array(f), np.array(b)) for segment, f, b in self._alone.values())
        return Row(ops, times, tuple(known))
