"""All that decides what happens next in the engine of several classes, to be compared with what it was before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from twin.engine.clock import Clock
from twin.engine.cycles import Cycle
from twin.engine.members import OP, SEGMENT, Member, Pending, Stream
from twin.engine.streams import BUSY

ROUNDING = 2.0**-44
"""Of the time now: some hundred units in the last place, which that many sums may be apart."""
Numbers = list[float]


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
    over: list[list[int]]
    """Collectives of each rank that are over and not yet awaited, of the last rounds."""

    def follows(self, before: State, cycles: Sequence[Cycle]) -> bool:
        """Tell whether this is that state, a round later."""
        passed = self.now - before.now
        for cycle, now, then, host, hosted in zip(cycles, self.at, before.at, self.hosts, before.hosts, strict=True):
            if now != (then[0] + cycle.ops, then[1] + cycle.parts):
                return False
            if then[1] <= cycle.first:  # the part before the next one is what it was at, and must come again too
                return False
            if host - hosted > passed:
                return False
        if self.facts != before.facts:
            return False
        apart = np.abs(np.array(self.numbers) - np.array(before.numbers))
        return bool((apart <= ROUNDING * self.now).all())

    @classmethod
    def of(cls, ranks: Sequence[Member], streams: Sequence[Stream], clock: Clock, recent_ops: Sequence[int]) -> State:
        """Take what there is now; of what each rank has begun in its last ops it must know what is awaited later."""
        now, facts, numbers, over = clock.now, list[object](), Numbers(), list[list[int]]()
        for rank, ops in zip(ranks, recent_ops, strict=True):
            recent = _recent(rank, ops)
            facts.append((_facts(rank), [(op - rank.op, pending.call) for op, pending in recent if not pending.over]))
            over.append([op for op, pending in recent if pending.over])
            numbers += _numbers(rank, now)
        for stream in streams:
            facts.append(_of_stream(stream))
            if (flow := stream.flow) is not None:
                passed = now - flow.since
                allowed = flow.allowed + (now - flow.limited_since) * flow.limit
                numbers += [flow.remaining - passed * flow.speed, allowed]
                facts.append((flow.speed, flow.limit))
        planned = sorted((what, whose, time - now) for what, whose, time in _planned(clock, streams))
        facts.append([(what, whose) for what, whose, _ in planned])
        numbers += [time for _, _, time in planned]
        return cls(now, facts, numbers, [(rank.op, rank.part) for rank in ranks], [rank.host for rank in ranks], over)


def _of_stream(stream: Stream) -> object:
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


def _planned(clock: Clock, streams: Sequence[Stream]) -> Iterator[tuple[str, int, float]]:
    """Yield what is to happen, whose it is, and when; what was planned anew since then is left out."""
    numbers = {id(stream): number for number, stream in enumerate(streams)}
    flows = {id(stream.flow): numbers[id(stream)] for stream in streams if stream.flow is not None}
    for time, happen, subject, plan in clock.planned:
        if isinstance(subject, Member):
            if plan == subject.plan:
                yield happen.__name__, subject.number, time
        elif isinstance(subject, Stream):
            yield happen.__name__, numbers[id(subject)], time
        elif plan == subject.plan:
            yield happen.__name__, flows[id(subject)], time


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
        (id(rank.segment), rank.alone) if works == SEGMENT else None,
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
