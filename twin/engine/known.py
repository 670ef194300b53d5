"""The segments that a rank has gone through, and what comes of them when all is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from twin.engine.rows import Occurrences, Row
from twin.engine.segment import Run, Segment, times_of
from twin.engine.times import Ints, Times


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
