"""Periods: what all ranks do again and again, at the same times of it, is walked once and counted often.

A pipeline's programs are rounds of micro-batches (`Program.repeats`). Once it is full it settles into a regime in which
each round takes as long as the one before. That is seen from the state itself: if all ranks, streams, messages under
way and what is planned are one round later as they were a round before, each by the same time later, then so they are
after the next round, for nothing but this state and the programs decide what happens. (A regime may take a few rounds
to come back: so a state is compared with the last few.) As many rounds as all programs still have are passed over at
once, and the walk goes on behind them, with the drain.

Equal is within a few units in the last place of the clock (`ROUNDING`): the max-plus recurrence does not let such
differences grow, and each round adds one of them at most. Nothing is passed over where the host holds a rank up, where
a segment had to be gone through op by op, or where a rank's program does not come again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

from twin.engine.clock import Clock
from twin.engine.members import OP, SEGMENT, Member, Pending, Stream
from twin.engine.program import WAIT, Program
from twin.engine.rows import Ints
from twin.engine.streams import BUSY

ROUNDING = 2.0**-44
"""Of the time now: some hundred units in the last place, which that many sums may be apart."""
Numbers = list[float]


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
        if not repeats or len(rank.parts) < MIN_PARTS:
            return None
        chosen = max(repeats, key=lambda each: each.length * (each.count - 1))
        firsts = np.array([part[0] for part in rank.parts])
        first = int(np.searchsorted(firsts, chosen.first))
        again = int(np.searchsorted(firsts, firsts[min(first, len(firsts) - 1)] + chosen.length))
        if again >= len(firsts) or firsts[again] != firsts[first] + chosen.length or again == first:
            return None
        parts = again - first
        same = _same_parts(rank, firsts, parts, chosen.length)
        begin, end = _around(same, first)
        hosts = np.asarray(program.host_seconds[firsts[first] : firsts[again]])
        places = np.searchsorted(singles, firsts[[first, again]])
        return cls(chosen.length, parts, int(places[1] - places[0]), float(hosts.sum()), begin, end + parts)


MIN_PARTS = 16
"""Of a plan: shorter ones are walked."""


def _same_parts(rank: Member, firsts: Ints, parts: int, ops: int) -> Any:
    """Say which parts of a plan are, so many parts later, the same ones so many ops later."""
    stops = np.array([part[1] for part in rank.parts])
    segments = np.array([id(part[2]) for part in rank.parts])
    same = (firsts[parts:] - firsts[:-parts] == ops) & (stops[parts:] - stops[:-parts] == ops)
    same &= segments[parts:] == segments[:-parts]
    singles = rank.ops[0]
    own = singles[singles + ops < len(rank.program)]
    differing = own[~_same_ops(rank.program, own, ops)]
    of_part = np.searchsorted(firsts, differing, side="right") - 1
    same[of_part[of_part < len(same)]] = False
    return same


def _same_ops(program: Program, own: Ints, ops: int) -> Any:
    """Say which ops are, so many ops later, the same ones, and wait for the same."""
    which, code, target = np.asarray(program.ops.which), np.asarray(program.code), np.asarray(program.target)
    same = which[own + ops] == which[own]
    return same & (target[own + ops] - target[own] == np.where(code[own] == WAIT, ops, 0))


def _around(which: Any, place: int) -> tuple[int, int]:
    """Return the stretch of true ones around a place."""
    false = np.flatnonzero(~which)
    at = int(np.searchsorted(false, place))
    begin = int(false[at - 1]) + 1 if at else 0
    end = int(false[at]) if at < len(false) else len(which)
    return (begin, end) if begin <= place < end else (place, place)


@dataclass(frozen=True)
class State:
    """All that decides what happens from now on, its times from now and its ops from each rank's own."""

    now: float
    facts: list[object]
    """What must be equal."""
    numbers: Numbers
    """What must be equal but for rounding."""
    at: list[tuple[int, int]]
    """Each rank's next op, and the next part of its plan."""
    hosts: Numbers
    known: list[dict[tuple[int, Any], int]]
    """How many segments of each kind each rank has gone through."""
    over: list[list[int]]
    """Collectives of each rank that are over and not yet awaited, of the last rounds."""

    def follows(self, before: State, cycles: Sequence[Cycle]) -> bool:
        """Tell whether this is that state, a round later."""
        passed = self.now - before.now
        for cycle, now, then, host, hosted in zip(cycles, self.at, before.at, self.hosts, before.hosts, strict=True):
            if now != (then[0] + cycle.ops, then[1] + cycle.parts) or then[1] < cycle.first:
                return False
            if host - hosted > passed:
                return False
        if self.facts != before.facts:
            return False
        apart = np.abs(np.array(self.numbers) - np.array(before.numbers))
        return bool((apart <= ROUNDING * self.now).all())


class Observer:
    """Looks at the engine once a round, and passes over what comes again."""

    def __init__(
        self, ranks: Sequence[Member], streams: Sequence[Stream], clock: Clock, cycles: Sequence[Cycle]
    ) -> None:
        self.ranks, self.streams, self.clock, self.cycles = ranks, streams, clock, cycles
        self._number = {id(stream): number for number, stream in enumerate(streams)}
        self._last: deque[State] = deque(maxlen=MAX_ROUNDS)
        """Of the last rounds, the latest last."""
        self._looks = 0
        ranks[0].watched = cycles[0].first + 1

    @classmethod
    def of(cls, ranks: Sequence[Member], streams: Sequence[Stream], clock: Clock) -> Observer | None:
        """Watch ranks whose programs all come again; None if one does not."""
        cycles: list[Cycle] = []
        for rank in ranks:
            cycle = Cycle.of(rank)
            if cycle is None:
                return None
            cycles.append(cycle)
        return cls(ranks, streams, clock, cycles)

    def look(self) -> None:
        """Compare with what was some rounds before; pass over what comes again, or look again a round later."""
        first, parts = self.ranks[0], self.cycles[0].parts
        first.watched += parts
        self._looks += 1
        if any(rank.held for rank in self.ranks):
            for rank in self.ranks:
                rank.held = False
            self._last.clear()
            return
        state = self._state()
        left = min((c.stop - rank.part) // c.parts for c, rank in zip(self.cycles, self.ranks, strict=True))
        for rounds, before in enumerate(reversed(self._last), 1):
            times = left // rounds
            cycles = [cycle.times(rounds) for cycle in self.cycles]
            if times and state.follows(before, cycles) and self._pass_over(state, before, cycles, times):
                left = 0
                break
        self._last.append(state)
        if left < 1:
            first.watched = -1
        elif self._looks & (self._looks - 1) == 0 and self._looks > 2 * MAX_ROUNDS:  # of many short rounds not all
            self._last.clear()
            first.watched += parts * self._looks

    # What there is

    def _state(self) -> State:
        now, facts, numbers = self.clock.now, list[object](), Numbers()
        over = []
        for rank, cycle in zip(self.ranks, self.cycles, strict=True):
            recent = _recent(rank, MAX_ROUNDS * cycle.ops)
            facts.append((_facts(rank), [(op - rank.op, pending.call) for op, pending in recent if not pending.over]))
            over.append([op for op, pending in recent if pending.over])
            numbers += _numbers(rank, now)
        for stream in self.streams:
            facts.append(self._of_stream(stream))
            if (flow := stream.flow) is not None:
                passed = now - flow.since
                allowed = flow.allowed + (now - flow.limited_since) * flow.limit
                numbers += [flow.remaining - passed * flow.speed, allowed]
                facts.append((flow.speed, flow.limit))
        planned = sorted((what, whose, time - now) for what, whose, time in self._planned())
        facts.append([(what, whose) for what, whose, _ in planned])
        numbers += [time for _, _, time in planned]
        return State(
            now,
            facts,
            numbers,
            [(rank.op, rank.part) for rank in self.ranks],
            [rank.host for rank in self.ranks],
            [rank.known.counts for rank in self.ranks],
            over,
        )

    def _of_stream(self, stream: Stream) -> object:
        """What waits on a stream: members by how far behind their own place the op is."""
        queue = [
            (
                pending.call,
                [(rank.number, place - rank.place) for rank, place in pending.arrived],
                [rank.number for rank in pending.waiting],
            )
            for pending in stream.queue
        ]
        return queue, stream.running, [arrived - stream.done for arrived in stream.arrived.values()]

    def _planned(self) -> Iterator[tuple[str, int, float]]:
        """Yield what is to happen, whose it is, and when; what was planned anew since then is left out."""
        flows = {id(stream.flow): self._number[id(stream)] for stream in self.streams if stream.flow is not None}
        for time, happen, subject, plan in self.clock.planned:
            if isinstance(subject, Member):
                if plan == subject.plan:
                    yield happen.__name__, subject.number, time
            elif isinstance(subject, Stream):
                yield happen.__name__, self._number[id(subject)], time
            elif plan == subject.plan:
                yield happen.__name__, flows[id(subject)], time

    # What comes again

    def _pass_over(self, state: State, before: State, cycles: Sequence[Cycle], times: int) -> bool:
        """Pass over what has come since then so many times; tell whether that was possible."""
        seconds = state.now - before.now
        under_way = self._under_way()
        for rank, cycle in zip(self.ranks, cycles, strict=True):
            oldest = min(under_way[rank.number], default=(rank.place, False))[0]
            if oldest < rank.place - cycle.places or rank.place < 2 * cycle.places:
                return False  # something has been under way for longer
        for number, (rank, cycle) in enumerate(zip(self.ranks, cycles, strict=True)):
            _fill(rank, cycle.places, times, seconds, under_way[rank.number])
            rank.known.again(before.known[number], times, cycle.ops, seconds)
            over = sorted({*state.over[number]} - {*before.over[number]})
            _shift(rank, cycle, times, seconds, over)
        for stream in self.streams:
            for pending in stream.queue:
                pending.arrived = [(rank, at + times * cycles[rank.number].places) for rank, at in pending.arrived]
            if stream.flow is not None:
                stream.flow.since += times * seconds
                stream.flow.limited_since += times * seconds
        self.clock.pass_over(times * seconds)
        return True

    def _under_way(self) -> list[list[tuple[int, bool]]]:
        """Places of collectives of each rank that are not over, and whether they run."""
        found: list[list[tuple[int, bool]]] = [[] for _ in self.ranks]
        for stream in self.streams:
            for number, pending in enumerate(stream.queue):
                for rank, place in pending.arrived:
                    found[rank.number].append((place, stream.running and not number))
        return found


MAX_ROUNDS = 6
"""Rounds that a regime may take to come back."""


def _recent(rank: Member, ops: int) -> list[tuple[int, Pending]]:
    """Return the collectives that a rank has begun in its last ops and that are awaited later, the latest first."""
    return list(takewhile(lambda one: one[0] >= rank.op - ops, reversed(rank.pending.items())))


def _facts(rank: Member) -> object:
    """What a rank is at."""
    works = rank.works_at
    return (
        works,
        rank.idle_at if rank.idle_at == BUSY else rank.idle_at - rank.op,
        rank.collectives,
        rank.stop - rank.op,
        rank.issued - rank.op,
        len(rank.under_way),
        (id(rank.segment), rank.first - rank.op, rank.alone) if works == SEGMENT else None,
        [slow for _, _, slow in rank.run.marks] if works == SEGMENT and rank.run is not None else None,
    )


def _numbers(rank: Member, now: float) -> Numbers:
    """Times of what a rank is at."""
    if rank.works_at == OP:
        return [rank.since - now, rank.remaining]
    if rank.works_at != SEGMENT:
        return []
    run = rank.run
    return [rank.since - now] if run is None else [each for at, own, _ in run.marks for each in (at - now, own)]


def _fill(rank: Member, places: int, times: int, seconds: float, under_way: Sequence[tuple[int, bool]]) -> None:
    """Write when the ops that are passed over ran: as the last ones so many places before, later.

    What is still to come of those `under_way`, by their places and whether they run, came of those before. A wait in
    which the period began came before it, in what may have been no regime yet; the one in which it ended did not.
    """
    stop, waits = rank.place, rank.op < rank.stop
    behind = slice(stop, stop + times * places)
    later = np.arange(times)[:, None] * seconds
    to_end, to_start = [place for place, _ in under_way], [place for place, runs in under_way if not runs]
    for column, to_come in ((rank.arrival, []), (rank.start, to_start), (rank.end, to_end), (rank.share, to_end)):
        values = np.asarray(column)
        passing = 0.0 if column is rank.share else 1.0
        values[to_come] = values[np.array(to_come, dtype=np.int64) - places] + passing * seconds
        own = values[stop - places : stop] + passing * seconds
        if waits and column is not rank.end:
            own[0] = values[stop]
            values[behind.stop] = values[stop] + passing * times * seconds
        values[behind] = (own + passing * later).ravel()


def _shift(rank: Member, cycle: Cycle, times: int, seconds: float, over: Sequence[int]) -> None:
    """Let a rank be where it will be; of collectives that are over there are as many more, for waits to come."""
    ops, place = times * cycle.ops, times * cycle.places
    pending = {op: one for op, one in rank.pending.items() if one.over}
    pending |= {op + cycle.ops * more: pending[op] for more in range(1, times + 1) for op in over}
    pending |= {op + ops: one for op, one in rank.pending.items() if not one.over}
    rank.pending = dict(sorted(pending.items(), key=lambda one: one[0]))
    rank.op += ops
    rank.stop += ops
    rank.part += times * cycle.parts
    rank.first += ops
    rank.issued += ops
    rank.prepared += ops
    rank.shift += place - ops
    if rank.idle_at != BUSY:
        rank.idle_at += ops
    rank.host += times * cycle.host_seconds
    rank.since += times * seconds
    if rank.works_at == SEGMENT and rank.run is not None:
        rank.run = rank.run.later(times * seconds)
