"""A program cut into stretches of ops to go through one by one, and stretches that are known as a whole.

Of the latter a long program has thousands, and a few dozen that differ. Two are the same if their ops are; what lies in
a repeated part of the program (`Program.repeats`) is what lay there a round before, and its ops need no look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from twin.engine.program import Program, Repeated
from twin.engine.segment import Segment
from twin.engine.times import Ints

SINGLES = -1
"""In place of a stretch's number: ops to go through one by one."""


@dataclass(frozen=True)
class Cuts:
    """Parts of a program, in order, as columns."""

    firsts: Ints
    """First op of each."""
    stops: Ints
    """The op behind the last one."""
    numbers: Ints
    """Which of the distinct stretches it is, or SINGLES."""
    shifts: Ints
    """How places of ops among all that are gone through one by one are shifted against their numbers."""
    singles: Ints
    """All ops to go through one by one."""

    @classmethod
    def of(cls, program: Program, singles: Ints) -> Cuts:
        """Cut a program; what is between single ops is a stretch."""
        gaps = np.flatnonzero(np.diff(singles, prepend=-1, append=len(program)) > 1)
        begins = np.concatenate([[-1], singles])[gaps] + 1
        stops = np.append(singles, len(program))[gaps]
        known = np.empty((4, 2 * len(gaps) + 1), dtype=np.int64)  # every other part is one of single ops
        known[:, 1::2] = begins, stops, _numbers(program, begins, stops), gaps - stops
        known[0, ::2], known[1, ::2] = np.append(0, stops), np.append(begins, len(program))
        known[2, ::2], known[3, ::2] = SINGLES, np.append(gaps - begins, len(singles) - len(program))
        firsts, stops, numbers, shifts = known[:, known[0] < known[1]]
        return cls(firsts, stops, numbers, shifts, singles)

    @classmethod
    def none(cls, length: int) -> Cuts:
        """Return one part of single ops."""
        firsts, stops, numbers, shifts = np.array([[0], [length], [SINGLES], [0]])
        return cls(firsts, stops, numbers, shifts, np.arange(length))

    @cached_property
    def distinct(self) -> list[tuple[int, int]]:
        """First op and the one behind the last of stretches that differ, the first time each."""
        first = np.unique(self.numbers, return_index=True)[1]
        first = first[self.numbers[first] != SINGLES]
        return list(zip(self.firsts[first].tolist(), self.stops[first].tolist(), strict=True))


@dataclass(frozen=True)
class Plan:
    """One rank class's program: its parts, and the segments that its stretches are."""

    cuts: Cuts
    segments: Sequence[Segment]
    """By the numbers of the stretches."""

    @classmethod
    def op_by_op(cls, length: int) -> Plan:
        """Return one without segments."""
        return cls(Cuts.none(length), ())


def _numbers(program: Program, begins: Ints, stops: Ints) -> Ints:
    """Number stretches that differ, in the order in which they come."""
    origin, stretches = _round_before(program.repeats, begins, stops), np.arange(len(begins))
    origin = np.where(origin < 0, stretches, origin)
    while (origin[origin] != origin).any():  # of the round before that one, and so on
        origin = origin[origin]
    first = np.flatnonzero(origin == stretches)
    which, known = program.ops.which, dict[bytes, int]()
    numbers = [
        known.setdefault(which[begin:stop].tobytes(), len(known))
        for begin, stop in zip(begins[first].tolist(), stops[first].tolist(), strict=True)
    ]
    found: Ints = np.array(numbers, dtype=np.int64)[np.searchsorted(first, origin)]
    return found


def _round_before(repeats: Sequence[Repeated], begins: Ints, stops: Ints) -> Ints:
    """Return of each stretch in a repeated part the one that is the same a round before, of others -1."""
    found = np.full(len(begins), -1)
    for part in repeats:
        low, high = np.searchsorted(begins, [part.first + part.length, part.first + part.count * part.length])
        before = np.searchsorted(begins[:high], begins[low:high] - part.length)
        own = slice(low, high)
        same = (begins[before] == begins[own] - part.length) & (stops[before] == stops[own] - part.length)
        same &= stops[own] <= part.first + part.count * part.length
        found[own] = np.where(same, before, found[own])
    return found
