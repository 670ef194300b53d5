"""What all devices draw together, from a step's first moment to its last.

Each op adds its watts while it runs. Ops may be millions: a stretch of the step after the other is put in order, and
what changes after its end is kept for the next one. Watts are rounded to a unit of which every sum of them is a whole
number below 2^53: so the order in which ops that begin and end at one time are added changes nothing, not the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import frexp, inf, ldexp
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twin.engine.program import COMPUTE
from twin.engine.rows import Occurrences
from twin.engine.setting import PassedOver
from twin.engine.times import Floats, Times

MAX_DRAWING = 2**17
"""Changes that are put in order at once: some megabytes."""
MANTISSA_BITS = 52
SHORTEST = 2.0**-40
"""Of the step: what lasts no longer may be rounding, of thousands of sums and of what is passed over
(`twin.engine.states.ROUNDING`)."""


class Draws(Protocol):
    """Several things of one kind that draw power, in the order in which they begin; less, where watts are negative."""

    @property
    def begins(self) -> Floats:
        """When they begin, (things,)."""

    @property
    def changes(self) -> int:
        """How often all of them together change the power."""

    def between(self, first: int, stop: int, unit: float) -> tuple[Floats, Floats]:
        """Return when some of them change the power, and by how many watts, whole multiples of a unit."""

    def without(self, begin: float, seconds: float) -> Draws:
        """Leave out those that begin in a stretch of time, and let later ones begin so much earlier."""


@dataclass(frozen=True)
class Ops:
    """Ops that are known one by one: one thing each."""

    begins: Floats
    seconds: Floats
    watts: Floats

    @classmethod
    def of(cls, times: Times, code: NDArray[np.int8], watts: Floats, slowness: float) -> Ops:
        """Take those that draw anything, on devices of typical speed; ranks wait for others so many times as slow."""
        seconds = seconds_of(times, code, slowness)
        places = np.flatnonzero((watts != 0.0) & (seconds > 0.0))
        begins = times.start[places]
        if (begins[1:] < begins[:-1]).any():
            order = np.argsort(begins)
            places, begins = places[order], begins[order]
        return cls(begins, seconds[places], watts[places])

    @property
    def changes(self) -> int:
        """Two an op."""
        return 2 * len(self.begins)

    def between(self, first: int, stop: int, unit: float) -> tuple[Floats, Floats]:
        """See above."""
        own, rises = slice(first, stop), _rounded(self.watts[first:stop], unit)
        return np.concatenate([self.begins[own], self.begins[own] + self.seconds[own]]), np.append(rises, -rises)

    def without(self, begin: float, seconds: float) -> Ops:
        """See above."""
        first, stop = np.searchsorted(self.begins, [begin, begin + seconds])
        begins = _left(self.begins, begin, seconds)
        kept = (np.concatenate([of[:first], of[stop:]]) for of in (self.seconds, self.watts))
        return Ops(begins, *kept)


@dataclass(frozen=True)
class Segments:
    """Occurrences of a segment."""

    begins: Floats
    at: Floats
    """When it changes the power, seconds from its begin."""
    watts: Floats
    """By how much."""

    @classmethod
    def of(cls, several: Sequence[Occurrences], watts: Floats, slowness: float, held: Ops) -> Segments:
        """Take those of one segment whose ops draw the same; `held` is what they do not draw, at their limit."""
        segment = several[0].segment
        ops = Ops.of(segment.times, segment.code, watts, slowness)
        begins, rises = np.append(ops.begins, held.begins), np.append(ops.watts, held.watts)
        ends = np.append(ops.begins + ops.seconds, held.begins + held.seconds)
        at, changes = np.concatenate([begins, ends]), np.append(rises, -rises)
        order = np.argsort(at)
        return cls(np.sort(np.concatenate([each.begins for each in several])), at[order], changes[order])

    @property
    def changes(self) -> int:
        """Two an op."""
        return len(self.begins) * len(self.at)

    def between(self, first: int, stop: int, unit: float) -> tuple[Floats, Floats]:
        """See above."""
        at = np.add.outer(self.begins[first:stop], self.at)
        return at.ravel(), np.tile(_rounded(self.watts, unit), stop - first)

    def without(self, begin: float, seconds: float) -> Segments:
        """See above."""
        return replace(self, begins=_left(self.begins, begin, seconds))

    def at_most(self, unit: float) -> Segments:
        """Let each draw from its begin to its end the most that it ever draws."""
        if not len(self.at):
            return self
        highest = np.cumsum(_rounded(self.watts, unit)).max()
        return replace(self, at=self.at[[0, -1]], watts=np.array([highest, -highest]))


def _left(begins: Floats, begin: float, seconds: float) -> Floats:
    """Return those before a stretch of time, and those behind it as if that were not there."""
    first, stop = np.searchsorted(begins, [begin, begin + seconds])
    return np.concatenate([begins[:first], begins[stop:] - seconds])


def seconds_of(times: Times, code: NDArray[np.int8], slowness: float) -> Floats:
    """Return how long ops take on devices of typical speed, (ops,)."""
    found: Floats = (times.end - times.start) / np.where(code == COMPUTE, slowness, 1.0)
    return found


def _rounded(watts: Floats, unit: float) -> Floats:
    found: Floats = np.rint(watts / unit) * unit
    return found


@dataclass(frozen=True)
class PowerOverTime:
    """All that draws power in a step."""

    draws: Sequence[Draws]
    context_watts: float
    """What is drawn all the time."""
    most_watts: float
    """More than all can draw together."""
    step_seconds: float

    @property
    def unit(self) -> float:
        """Of watts, see above."""
        return ldexp(1.0, frexp(self.most_watts)[1] - MANTISSA_BITS)

    @property
    def changes(self) -> int:
        """How often the power changes."""
        return sum(each.changes for each in self.draws)

    def pieces(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield when the power changes and watts from then on, a stretch of the step after the other."""
        unit = self.unit
        count = 1 + self.changes // MAX_DRAWING
        edges = np.linspace(0.0, self.step_seconds, count + 1)[1:-1]
        stops = [[*np.searchsorted(each.begins, edges).tolist(), len(each.begins)] for each in self.draws]
        done = [0] * len(self.draws)
        at, change = np.zeros(1), _rounded(np.array([self.context_watts]), unit)
        level = 0.0
        for stretch in range(count):
            ats, changes = [at], [change]
            for number, each in enumerate(self.draws):
                first, stop = done[number], stops[number][stretch]
                if first < stop:
                    more, by = each.between(first, stop, unit)
                    ats.append(more)
                    changes.append(by)
                    done[number] = stop
            at, change = np.concatenate(ats), np.concatenate(changes)
            order = np.argsort(at, kind="stable")  # each op or segment brings what is in order: this sort merges it
            at, change = at[order], change[order]
            cut = int(np.searchsorted(at, edges[stretch])) if stretch < len(edges) else len(at)
            moments, watts = at[:cut], level + np.cumsum(change[:cut])
            at, change = at[cut:], change[cut:]
            if not len(moments):
                continue
            level = float(watts[-1])
            after = np.append(np.flatnonzero(moments[1:] != moments[:-1]), len(moments) - 1)
            yield moments[after], watts[after]

    def without(self, passed_over: PassedOver) -> PowerOverTime:
        """Leave out a stretch that brings nothing new.

        Any stretch as long brings nothing new that begins in the period before it: this one begins when for long
        nothing else does, so that nothing is left out, or counted twice, that rounding makes a little late or early.
        """
        period = (passed_over.begin - passed_over.period, passed_over.begin)
        own = (each.begins[slice(*np.searchsorted(each.begins, period))] for each in self.draws)
        begins = np.sort(np.concatenate([period, *own]))
        longest = int(np.argmax(np.diff(begins)))
        begin, seconds = float(begins[longest : longest + 2].mean()), passed_over.seconds
        draws = [each.without(begin, seconds) for each in self.draws]
        return replace(self, draws=draws, step_seconds=self.step_seconds - seconds)

    @property
    def bound_watts(self) -> float:
        """What is drawn at no time more than; infinite where it would take as long to find as the peak."""
        draws = [each.at_most(self.unit) if isinstance(each, Segments) else each for each in self.draws]
        coarse = replace(self, draws=draws)
        if 2 * coarse.changes > self.changes:
            return inf
        return max(float(watts.max()) for _, watts in coarse.pieces())

    @property
    def peak_watts(self) -> float:
        """The highest power that lasts.

        Where an op ends as another begins, their times may differ by rounding: for so long both draw, or none does.
        Stages of a pipeline wait for each other, and soon draw their most at the same time: then no more is looked for.
        """
        shortest, highest, bound = SHORTEST * self.step_seconds, 0.0, self.bound_watts
        begun, drawn = 0.0, 0.0
        for moments, watts in self.pieces():
            lasts = np.diff(moments, append=self.step_seconds)
            highest = max(highest, float(watts[:-1][lasts[:-1] > shortest].max(initial=0.0)))
            if moments[0] - begun > shortest:
                highest = max(highest, drawn)
            if highest >= bound:
                return highest
            begun, drawn = float(moments[-1]), float(watts[-1])
        return max(highest, drawn) if self.step_seconds - begun > shortest else highest
