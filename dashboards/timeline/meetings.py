"""Who met whom: members of each collective and message, when each came, and what a rank did before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboards.events import CATEGORIES, WAIT, Events, Floats
from dashboards.timeline.step import Step
from twin.compare.kinds import is_message

WAIT_ENDING = "/wait"
COMPUTE = "compute"
TINY = 1e-12
"""Seconds: what differs by less is rounding."""
NONE: Floats = np.zeros(0)


@dataclass(frozen=True)
class Meetings:
    """The collectives of a step, so ordered that members of one lie beside each other."""

    order: NDArray[np.int32]
    """Places in the step."""
    key: NDArray[np.int64]
    """Of each, ascending: the op's name and the group's number."""
    arrival: Floats
    """Of every event of the step, seconds from the step's begin."""
    met: NDArray[np.int64]
    """Key of every event of the step; -1 of those that meet nobody."""

    def members(self, event: int) -> NDArray[np.int32]:
        """Return the events that meet in one, in the order in which they came; the event alone if it meets nobody."""
        if self.met[event] < 0:
            return np.array([event], dtype=np.int32)
        low, high = np.searchsorted(self.key, [self.met[event], self.met[event] + 1])
        found = self.order[low:high]
        return found[np.argsort(self.arrival[found], kind="stable")]


def meetings_of(step: Step, events: Events) -> Meetings:
    """Find out which events of a step meet: the same op of the same group; both ends of a message."""
    row = step.row
    arrival = step.start - (events.start_ns[row] - events.arrival_ns[row]) / 1e9
    names: dict[str, int] = {}
    number = [names.setdefault(n.rpartition("/")[0] if is_message(n) else n, len(names)) for n in step.names]
    group = events.group[row].astype(np.int64)
    met = np.array(number, dtype=np.int64)[step.base] * (int(group.max(initial=0)) + 2) + group + 1
    met[~events.kind.are("collective")[row]] = -1
    at = np.flatnonzero(met >= 0).astype(np.int32)
    order = at[np.argsort(met[at], kind="stable")]
    return Meetings(order, met[order], arrival, met)


def collective_of(step: Step, wait: int) -> int | None:
    """Return the collective that a wait of the compute stream is for, of the same rank; None if it is not there."""
    name = step.names[step.base[wait]].removesuffix(WAIT_ENDING)
    if name not in step.names:
        return None
    rows = step.rows_of(int(step.rank[wait]))
    found = np.flatnonzero(step.base[rows] == step.names.index(name))
    return rows.start + int(found[0]) if len(found) else None


def before(step: Step, rank: int, moment: float) -> int | None:
    """Return the op of a rank that ended last until a moment; None if there is none."""
    rows = step.rows_of(rank)
    ends, kinds = step.end[rows], step.category[rows]
    wanted = ends <= moment + 1e-12
    wanted &= kinds != CATEGORIES.index(WAIT)
    found = np.flatnonzero(wanted)
    return rows.start + int(found[np.argmax(ends[found])]) if len(found) else None


@dataclass(frozen=True)
class Link:
    """One piece of the critical path: an event, and from when to when the path runs through it."""

    event: int
    start: float
    end: float


def critical_path(step: Step, meetings: Meetings, most: int = 20_000) -> list[Link]:
    """Walk back from the last end: from a collective to the member that came last, from all else to what ended before.

    The first piece comes first. Where nothing ran before a piece, the path has a gap there: the host was late.
    """
    if not len(step.end):
        return []
    ends = _by_stream(step)
    computing = step.streams.index(COMPUTE) if COMPUTE in step.streams else 0
    at, moment, found = int(step.end.argmax()), float(step.end.max()), []
    for _ in range(most):
        if step.category[at] == CATEGORIES.index(WAIT):
            collective = collective_of(step, at)
            if collective is not None and step.end[collective] > step.start[at]:
                if moment > step.end[collective]:
                    found.append(Link(at, float(step.end[collective]), moment))
                at, moment = collective, min(moment, float(step.end[collective]))
                continue
        begin = float(step.start[at])
        if meetings.met[at] >= 0:
            last = int(meetings.members(at)[-1])
            begin = min(float(meetings.arrival[last]), moment)
            found.append(Link(at, begin, moment))
            rank = int(step.rank[last])
        else:
            found.append(Link(at, begin, moment))
            rank = int(step.rank[at])
        # a collective begins when it was asked for, and when the one before it on its stream is over
        previous = ends.before(rank, tuple(dict.fromkeys((computing, int(step.stream[at])))), begin)
        if previous is None:
            break
        at, moment = previous, float(step.end[previous])
    return found[::-1]


@dataclass(frozen=True)
class _Ends:
    """Ops of each stream of each rank by their ends; waits are of the compute stream."""

    event: dict[tuple[int, int], NDArray[np.int32]]
    end: dict[tuple[int, int], Floats]

    def before(self, rank: int, streams: tuple[int, ...], moment: float) -> int | None:
        """Return the op of these streams that ended last until a moment; of two at once that of the first stream."""
        best: tuple[float, int] | None = None
        for stream in streams:
            place = int(np.searchsorted(self.end.get((rank, stream), NONE), moment + TINY, side="right")) - 1
            if place >= 0:
                end = float(self.end[rank, stream][place])
                if best is None or end > best[0] + TINY:
                    best = (end, int(self.event[rank, stream][place]))
        return None if best is None else best[1]


def _by_stream(step: Step) -> _Ends:
    event: dict[tuple[int, int], NDArray[np.int32]] = {}
    end: dict[tuple[int, int], Floats] = {}
    for rank in step.ranks:
        rows = step.rows_of(rank)
        at = np.arange(rows.start, rows.stop, dtype=np.int32)
        at = at[step.end[at] > step.start[at]]
        for stream in np.unique(step.stream[at]).tolist():
            mine = at[step.stream[at] == stream]
            mine = mine[np.argsort(step.end[mine], kind="stable")]
            event[rank, stream], end[rank, stream] = mine, step.end[mine]
    return _Ends(event, end)
