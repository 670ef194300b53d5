"""Periods: what all ranks do again and again, at the same times of it, is walked once and counted often.

A pipeline's programs are rounds of micro-batches (`Program.repeats`). Once it is full it settles into a regime in which
each round takes as long as the one before. That is seen from the state itself: if all ranks, streams, messages under
way and what is planned are one round later as they were a round before, each by the same time later, then so they are
after the next round, for nothing but this state and the programs decide what happens. (A regime may take a few rounds
to come back: so a state is compared with the last few.) As many rounds as all programs still have are passed over at
once, and the walk goes on behind them, with the drain.

Equal is within some hundred units in the last place of the clock (`twin.engine.states.ROUNDING`), and each round that
is passed over adds no more than that. Nothing is passed over where the host holds a rank up, where a segment had to be
gone through op by op, where something has been under way for longer than what is compared, or where a rank's program
does not come again. Regimes that do not come back within `MAX_ROUNDS` are walked to their end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from twin.engine.clock import Clock
from twin.engine.cycles import Cycle
from twin.engine.members import SEGMENT, Member, Stream
from twin.engine.setting import PassedOver
from twin.engine.states import State
from twin.engine.streams import BUSY

MAX_ROUNDS = 6
"""Rounds that a regime may take to come back."""


class Observer:
    """Looks at the engine once a round, and passes over what comes again."""

    def __init__(
        self, ranks: Sequence[Member], streams: Sequence[Stream], clock: Clock, cycles: Sequence[Cycle]
    ) -> None:
        self.ranks, self.streams, self.clock, self.cycles = ranks, streams, clock, cycles
        self._last: deque[State] = deque(maxlen=MAX_ROUNDS)
        """Of the last rounds, the latest last."""
        self._looks = 0
        self.passed_over: PassedOver | None = None
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
        if any(rank.held for rank in self.ranks):  # since the last look: what comes may come again all the same
            for rank in self.ranks:
                rank.held = False
            self._last.clear()
        state = State.of(self.ranks, self.streams, self.clock, [MAX_ROUNDS * cycle.ops for cycle in self.cycles])
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
            done = rank.part - (rank.works_at == SEGMENT)
            rank.known.again(done, cycle.parts, times, seconds)
            over = sorted({*state.over[number]} - {*before.over[number]})
            _shift(rank, cycle, times, seconds, over)
        for stream in self.streams:
            for pending in stream.queue:
                pending.arrived = [(rank, at + times * cycles[rank.number].places) for rank, at in pending.arrived]
            if stream.flow is not None:
                stream.flow.since += times * seconds
                stream.flow.limited_since += times * seconds
        self.passed_over = PassedOver(state.now, state.now + times * seconds, seconds)
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
    rank.issued += ops
    rank.prepared += ops
    rank.shift += place - ops
    if rank.idle_at != BUSY:
        rank.idle_at += ops
    rank.host += times * cycle.host_seconds
    rank.since += times * seconds
    if rank.works_at == SEGMENT and rank.run is not None:
        rank.run = rank.run.later(times * seconds)
