"""Ops by what they are: compute, collectives and waits by axis; and what follows from when they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.description.grid import Axis
from twin.engine.program import COMPUTE, START, WAIT, Call
from twin.engine.times import Ints, Times
from twin.schedule.ops import axis_of
from twin.trace.metrics import Breakdown, Intervals, breakdown


def axes_of(calls: Sequence[Call]) -> tuple[Axis, ...]:
    """Return what each call's time is booked under."""
    return tuple([axis_of(communicator) for communicator, _, _ in calls])


@dataclass(frozen=True)
class Marks:
    """Places of some ops, in program order, by what they are."""

    compute: Ints
    starts: dict[Axis, Ints]
    """Collectives by axis."""
    waits: dict[Axis, Ints]
    """Waits by the axis of what they wait for."""
    begun: dict[Axis, Ints]
    """What these wait for."""

    @classmethod
    def of(cls, code: NDArray[np.int8], target: NDArray[np.int32] | Ints, axis: Sequence[Axis]) -> Marks:
        """Sort ops; `target` is the call that a start begins, or the place of the start that a wait waits for."""
        names = list(dict.fromkeys(axis))
        axis_of_call = np.array([names.index(name) for name in axis], dtype=np.int64)
        starts, waits = np.flatnonzero(code == START), np.flatnonzero(code == WAIT)
        begun = target[waits].astype(np.int64)
        of_starts, of_waits = axis_of_call[target[starts]], axis_of_call[target[begun]]

        def by_axis(ops: Ints, number: Ints) -> dict[Axis, Ints]:
            """Sort ops by their axes' numbers; an axis without any is left out."""
            return {name: ops[number == i] for i, name in enumerate(names) if (number == i).any()}

        return cls(
            np.flatnonzero(code == COMPUTE),
            by_axis(starts, of_starts),
            by_axis(waits, of_waits),
            by_axis(begun, of_waits),
        )

    def breakdown(self, step: float, times: Times, busy: Intervals | None = None) -> Breakdown:
        """Say where a step goes; stretches that are `busy` count as compute."""
        start, end = times.start, times.end

        def at(places: Ints) -> Intervals:
            return start[places], end[places]

        compute = at(self.compute)
        if busy is not None:
            compute = np.concatenate([compute[0], busy[0]]), np.concatenate([compute[1], busy[1]])
        return breakdown(
            step,
            compute,
            {axis: at(places) for axis, places in self.starts.items()},
            {axis: at(places) for axis, places in self.waits.items()},
        )

    def waiting_for_peers(self, times: Times) -> dict[Axis, float]:
        """Return the seconds from coming to waits until what they wait for began, by axis."""
        return {
            axis: float(np.maximum(times.start[self.begun[axis]] - times.arrival[waits], 0.0).sum())
            for axis, waits in self.waits.items()
        }


def added(found: Breakdown, parts: Sequence[tuple[int, float, Breakdown]]) -> Breakdown:
    """Take stretches apart that counted as compute: how often each came, how long it took, and where its time went."""
    compute, exposed, idle, by_axis = found.compute, found.exposed, found.idle, dict(found.exposed_by_axis)
    for count, seconds, part in parts:
        compute -= count * (seconds - part.compute)
        exposed += count * part.exposed
        idle += count * part.idle
        for axis, own in part.exposed_by_axis.items():
            by_axis[axis] = by_axis.get(axis, 0.0) + count * own
    return Breakdown(compute, exposed, idle, by_axis)


def row_marks(code: NDArray[np.int8], target: NDArray[np.int32], ops: Ints, axis: Sequence[Axis]) -> Marks:
    """Sort some of a program's ops, those of which `ops` are the numbers, ascending."""
    if len(ops) == len(code):
        return Marks.of(code, target, axis)
    own, aim = code[ops], target[ops].astype(np.int64)
    waits = own == WAIT
    aim[waits] = np.searchsorted(ops, aim[waits])
    return Marks.of(own, aim, axis)
