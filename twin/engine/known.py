"""The segments that a rank has gone through, and what comes of them when all is over."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from twin.engine.plans import Plan
from twin.engine.rows import Occurrences, Row
from twin.engine.segment import Run, Segment, times_of
from twin.engine.times import Ints, Times

ALONE, UNCHANGED = 1, 2
"""A segment with nothing ever beside it, and one that was not slowed by what ran beside it."""


class Known:
    """When the segments of a rank's plan began: their ops' times are written when all is over, if then."""

    __slots__ = ("_begins", "_how", "_plan", "_runs")

    def __init__(self, plan: Plan) -> None:
        parts = len(plan.cuts.firsts)
        self._plan = plan
        self._begins = array("d", bytes(8 * parts))
        """Of each part of the plan."""
        self._how = bytearray(parts)
        """ALONE or UNCHANGED, where the begin says when all its ops ran; 0 of all other parts."""
        self._runs: dict[int, Run] = {}
        """Of the parts that were slowed, how they went."""

    def add(self, part: int, begin: float, run: Run | None, *, alone: bool) -> None:
        """Note that the segment at a part of the plan has ended."""
        if run is not None:
            self._runs[part] = run
            return
        self._begins[part] = begin
        self._how[part] = ALONE if alone else UNCHANGED

    def again(self, stop: int, parts: int, times: int, seconds: float) -> None:
        """Let the last so many parts before `stop` come so many times more, each time so many seconds later."""
        before, behind = slice(stop - parts, stop), slice(stop, stop + times * parts)
        begins, later = np.asarray(self._begins), np.arange(1, times + 1)[:, None]
        begins[behind] = (begins[before] + seconds * later).ravel()
        self._how[behind] = self._how[before] * times
        for part in [part for part in self._runs if stop - parts <= part < stop]:
            for more in range(1, times + 1):
                self._runs[part + more * parts] = self._runs[part].later(seconds * more)

    def row(self, ops: Ints, times: Times) -> Row:
        """Return what the rank did, once; these are the ops that it went through one by one."""
        parts, several = [ops], [times]
        for occurrences in self._occurrences(UNCHANGED):
            parts.append(occurrences.ops.ravel())
            several.append(occurrences.times)
        for segment, firsts, runs in self._slowed():
            parts.append((firsts[:, None] + np.arange(len(segment.code))).ravel())
            alone = segment.times
            found = times_of(runs, np.concatenate([alone.start, alone.end, alone.arrival]))
            start, end, arrival = (each.ravel() for each in np.split(found, 3, axis=1))
            several.append(Times(start, end, arrival, np.tile(alone.share, len(firsts))))
        self._runs.clear()  # of a long step many
        if len(parts) > 1:
            ops = np.concatenate(parts)
            order = np.argsort(ops, kind="stable")  # much is in order: this sort merges it
            ops, times = ops[order], Times.joined(several, order)
        return Row(ops, times, tuple(self._occurrences(ALONE)))

    def _occurrences(self, how: int) -> Iterator[Occurrences]:
        """Yield the segments whose begins say it all, each with all of its begins, in the order of their first ones."""
        cuts, begins = self._plan.cuts, np.asarray(self._begins)
        parts = np.flatnonzero(np.frombuffer(self._how, dtype=np.uint8) == how)
        numbers = cuts.numbers[parts]
        order = np.argsort(numbers, kind="stable")
        edges = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1)).tolist()
        for own in sorted((parts[order[begin:end]] for begin, end in pairwise(edges)), key=lambda own: int(own[0])):
            yield Occurrences(self._plan.segments[cuts.numbers[own[0]]], cuts.firsts[own], begins[own])

    def _slowed(self) -> Iterator[tuple[Segment, Ints, list[Run]]]:
        """Yield the others with their first ops, those together that are equal and have changed their pace as often."""
        together: dict[tuple[int, int], list[int]] = {}
        for part, run in self._runs.items():
            together.setdefault((int(self._plan.cuts.numbers[part]), len(run.marks)), []).append(part)
        for (number, _), parts in together.items():
            yield self._plan.segments[number], self._plan.cuts.firsts[parts], [self._runs[part] for part in parts]
