"""One step of a run, its clock set to zero, ready to be cut into windows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dashboards.events import Events, Floats
from twin.description.problems import fail
from twin.trace.names import in_order


@dataclass(frozen=True)
class Step:
    """The events of one step, sorted by rank. Times are seconds from the step's begin.

    `row` are the rows in the run's events; `base` numbers an op's name without its step within
    `names`.
    """

    number: int
    row: NDArray[np.int32]
    rank: NDArray[np.int32]
    start: Floats
    end: Floats
    category: NDArray[np.int8]
    stream: NDArray[np.int8]
    """Number within `streams`."""
    streams: tuple[str, ...]
    base: NDArray[np.int32]
    names: tuple[str, ...]

    @property
    def length(self) -> float:
        """Seconds from the step's begin to the last end."""
        return float(self.end.max()) if len(self.end) else 0.0

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks with events, ascending."""
        first = np.flatnonzero(self.rank[1:] != self.rank[:-1]) + 1
        return tuple(self.rank[np.concatenate([[0], first])].tolist()) if len(self.rank) else ()

    def rows_of(self, rank: int) -> slice:
        """Where the events of a rank lie."""
        one = np.asarray(rank, dtype=self.rank.dtype)  # of another type, all ranks would be copied to it
        return slice(int(np.searchsorted(self.rank, one)), int(np.searchsorted(self.rank, one, side="right")))


def step_of(events: Events, number: int | None) -> Step:
    """Cut out one step; that of median length if none is asked for. Raises DescriptionError."""
    if not len(events):
        raise fail("run", "has no events")
    number = _median_step(events) if number is None else number
    row = np.flatnonzero(events.step == number).astype(np.int32)
    if not len(row):
        raise fail("step", f"is not in the run; it has {', '.join(map(str, events.steps[:20]))}", number)
    at: slice | NDArray[np.int32] = row if len(row) < len(events) else slice(None)  # the only one: nothing to gather
    rank = events.rank[at]
    if (rank[1:] < rank[:-1]).any():
        order = np.argsort(rank, kind="stable")
        at = row = row[order]
        rank = rank[order]
    begin, _ = events.span_ns(row)
    names: dict[str, int] = {}
    number_of = np.array([names.setdefault(word.partition("/")[2], len(names)) for word in events.op.words])
    streams = in_order(events.stream.words)
    place = np.array([streams.index(word) for word in events.stream.words])
    return Step(
        number,
        row,
        rank,
        (events.start_ns[at] - begin) / 1e9,
        (events.end_ns[at] - begin) / 1e9,
        events.category[at],
        place.astype(np.int8)[events.stream.code[at]],
        tuple(streams),
        number_of.astype(np.int32)[events.op.code[at]],
        tuple(names),
    )


def _median_step(events: Events) -> int:
    if len(events.steps) == 1:
        return events.steps[0]
    lengths = []
    for number in events.steps:
        begin, end = events.span_ns(np.flatnonzero(events.step == number))
        lengths.append((end - begin, number))
    return sorted(lengths)[(len(lengths) - 1) // 2][1]


def partners(step: Step, other: Step, stands_for: dict[int, int] | None = None) -> NDArray[np.int32]:
    """For each event of `step` the place of the same op of the same rank in `other`; -1 if there is none.

    `stands_for` says which rank of `other` stands for a rank, where it is folded.
    """
    known = {name: number for number, name in enumerate(other.names)}
    translate = np.array([known.get(name, -1) for name in step.names], dtype=np.int64)
    found = np.full(len(step.rank), -1, dtype=np.int32)
    for rank in step.ranks:
        mine = step.rows_of(rank)
        theirs = other.rows_of((stands_for or {}).get(rank, rank))
        place = np.full(len(other.names) + 1, -1, dtype=np.int64)  # the last is for names it lacks
        place[other.base[theirs]] = np.arange(theirs.start, theirs.stop)
        found[mine] = place[translate[step.base[mine]]]
    return found
