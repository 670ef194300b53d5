"""Programs as rounds: which stretch of a rank's program comes again, and again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twin.engine.members import Member
from twin.engine.program import WAIT, Program
from twin.engine.times import Ints
from twin.schedule.stretch import around

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Cycle:
    """A rank's program as rounds."""

    ops: int
    """Of a round."""
    parts: int
    """Of its plan."""
    places: int
    """Ops that are gone through one by one."""
    host_seconds: float
    first: int
    """The first part from which on it comes again."""
    stop: int
    """The part behind the last one that has come a round before."""

    def times(self, rounds: int) -> Cycle:
        """Return so many rounds as one."""
        return replace(
            self,
            ops=self.ops * rounds,
            parts=self.parts * rounds,
            places=self.places * rounds,
            host_seconds=self.host_seconds * rounds,
        )

    @classmethod
    def of(cls, rank: Member) -> Cycle | None:
        """Find the longest stretch of a rank's program that comes again; None if there is none."""
        program, singles = rank.program, rank.ops[0]
        repeats = [each for each in program.repeats if each.count > 1]
        if not repeats or len(rank.stops) < MIN_PARTS:
            return None
        chosen = max(repeats, key=lambda each: each.length * (each.count - 1))
        firsts = rank.cuts.firsts
        first = int(np.searchsorted(firsts, chosen.first))
        again = int(np.searchsorted(firsts, firsts[min(first, len(firsts) - 1)] + chosen.length))
        if again >= len(firsts) or firsts[again] != firsts[first] + chosen.length or again == first:
            return None
        parts = again - first
        same = _same_parts(rank, parts, chosen.length)
        begin, end = around(same, first)
        hosts = np.asarray(program.hosts)[program.ops.which[firsts[first] : firsts[again]]]
        places = np.searchsorted(singles, firsts[[first, again]])
        return cls(chosen.length, parts, int(places[1] - places[0]), float(hosts.sum()), begin, end + parts)


MIN_PARTS = 16
"""Of a plan: shorter ones are walked."""


def _same_parts(rank: Member, parts: int, ops: int) -> Bools:
    """Say which parts of a plan are, so many parts later, the same ones so many ops later."""
    firsts, stops, numbers = rank.cuts.firsts, rank.cuts.stops, rank.cuts.numbers
    same: Bools = (firsts[parts:] - firsts[:-parts] == ops) & (stops[parts:] - stops[:-parts] == ops)
    same &= numbers[parts:] == numbers[:-parts]
    singles = rank.ops[0]
    own = singles[singles + ops < len(rank.program)]
    differing = own[~_same_ops(rank.program, own, ops)]
    of_part = np.searchsorted(firsts, differing, side="right") - 1
    same[of_part[of_part < len(same)]] = False
    return same


def _same_ops(program: Program, own: Ints, ops: int) -> Bools:
    """Say which ops are, so many ops later, the same ones, and wait for the same."""
    which, code, target = np.asarray(program.ops.which), np.asarray(program.code), np.asarray(program.target)
    same: Bools = which[own + ops] == which[own]
    same &= target[own + ops] - target[own] == np.where(code[own] == WAIT, ops, 0)
    return same
