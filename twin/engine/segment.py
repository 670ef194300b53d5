"""A segment: a stretch of ops that one class of ranks goes through alone, and how it goes when something runs beside.

There are two clocks, `alone` and `beside`; see `twin.engine.segments`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from twin.engine.marks import Marks
from twin.engine.program import COMPUTE, START
from twin.engine.times import Floats, Times
from twin.trace.metrics import Breakdown


@dataclass(frozen=True)
class Segment:
    """What a stretch of ops does when nothing else happens: seconds from its begin."""

    times: Times
    """When its ops run, (ops,)."""
    code: NDArray[np.int8]
    target: NDArray[np.int32]
    """Of a start its call, of a wait the start in the segment."""
    axes: tuple[str, ...]
    """What each call's time is booked under."""
    loud: NDArray[np.bool_]
    """Whether a call slows compute."""
    stretch: float
    host_seconds: float
    """Of all its ops."""
    lead_seconds: float
    """How far ahead the host must be at its begin, so that no op waits for it."""

    @cached_property
    def seconds(self) -> float:
        """How long it takes alone."""
        return float(self.times.end.max(initial=0.0))

    @cached_property
    def op_seconds(self) -> Floats:
        """How long each of its ops runs."""
        found: Floats = self.times.end - self.times.start
        return found

    @cached_property
    def waiting_for_peers(self) -> dict[str, float]:
        """Seconds from coming to its waits until what they wait for began, by axis."""
        return self.marks.waiting_for_peers(self.times)

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
        start, end = self.times.start, self.times.end
        computes, starts = self.code == COMPUTE, self.code == START
        starts[starts] = self.loud[self.target[starts]]
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
