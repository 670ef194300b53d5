"""Several classes of ranks: an event for each stretch of ops and for each collective.

The rules are those of the SimPy engine (`twin.engine.des`), written once more without processes: a heap of what
happens next, and ranks that go on when something has. What a class does alone is known beforehand
(`twin.engine.segments`) and is one event. So is a message whose speed nothing can change: its end is known when it
begins. Equal to the SimPy engine to rounding, which tests hold.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import chain

from twin.description.problems import fail
from twin.engine.clock import Clock
from twin.engine.layout import NOWHERE
from twin.engine.links import Links
from twin.engine.members import NOTHING, OP, SEGMENT, Member, Pending, Stream
from twin.engine.periods import Observer
from twin.engine.plans import Plan
from twin.engine.program import COMPUTE, START, WAIT, Program
from twin.engine.segment import Run, Segment
from twin.engine.segments import Segments
from twin.engine.setting import Setting, Timeline
from twin.engine.streams import BUSY, check_ended, differing


def applies(setting: Setting) -> bool:
    """Whether ranks have cores of their own and nothing is random."""
    return not setting.cores and setting.compute_factor is None and setting.collective_factor is None


def run(
    programs: Sequence[Program], setting: Setting, segments: Segments | None = None, *, periods: bool = True
) -> list[Timeline]:
    """Simulate one step of a setting to which this applies; timelines by role, rank classes in ascending order.

    With `segments` what is known beforehand is not gone through op by op, with `periods` repeats are passed over.

    Raises DescriptionError if ranks wait for each other for ever, or do not mean the same op.
    """
    return _Engine(programs, setting, segments, periods=periods).run()


class _Engine:
    """Ranks, streams, links and the clock."""

    def __init__(
        self, programs: Sequence[Program], setting: Setting, segments: Segments | None, *, periods: bool
    ) -> None:
        self.clock = Clock()
        self.links = Links(self.clock, setting.capacity)
        self.stretch = 1.0 + setting.compute_slowdown
        self.programs = programs
        role = setting.role or [0] * len(setting.slowness)
        self._of_role = [[c for c, r in enumerate(role) if r == number] for number in range(len(programs))]
        self.ranks = []
        for c, slowness in enumerate(setting.slowness):
            program = programs[role[c]]
            plan = Plan.op_by_op(len(program)) if segments is None else segments.plan(c)
            self.ranks.append(Member(c, program, slowness, plan))
        self._streams = streams = self._connect(setting, frozenset() if segments is None else segments.disturbing)
        self.observer = None if segments is None or not periods else Observer.of(self.ranks, streams, self.clock)

    def _connect(self, setting: Setting, disturbing: Collection[str]) -> list[Stream]:
        """Give ranks their streams and prices."""
        beside = 1.0 / (1.0 + setting.collective_slowdown)
        streams: dict[str, list[Stream]] = {}
        for name, members in setting.members.items():
            quiet, shares_links = name in setting.quiet, name in disturbing
            streams[name] = [
                Stream([self.ranks[m] for m in of], beside, quiet=quiet, shares_links=shares_links) for of in members
            ]
        for stream in chain.from_iterable(streams.values()):
            stream.finished = partial(self._finish, stream, 0)
        for rank in self.ranks:
            for call, (communicator, _, _) in enumerate(rank.program.calls):
                group = setting.group_class[communicator][rank.number]
                there = group != NOWHERE
                rank.calls.append((streams[communicator][group], setting.transfers[call][group]) if there else None)
        return list(chain.from_iterable(streams.values()))

    def run(self) -> list[Timeline]:
        """Let everything happen."""
        for rank in self.ranks:
            self._go_on(rank)
        self.clock.run()
        check_ended((r.number, r.program, r.op) for r in self.ranks if r.op < len(r.program))
        passed_over = None if self.observer is None else self.observer.passed_over
        timelines = [
            Timeline([self.ranks[c].row for c in classes], len(program), passed_over)
            for program, classes in zip(self.programs, self._of_role, strict=True)
        ]
        for stream in self._streams:  # who knows each other would stay, for garbage is not collected meanwhile
            del stream.finished
        for rank in self.ranks:
            rank.calls.clear()
        return timelines

    def _go_on(self, rank: Member) -> None:
        """Let a rank come to the next thing that takes time."""
        while self._walk(rank) if rank.op < rank.stop else self._next_part(rank):
            pass

    def _walk(self, rank: Member) -> bool:
        """Go through the rest of a part op by op; tell if the rank has come to its end, and not to what takes time."""
        now, program, shift, awaited = self.clock.now, rank.program, rank.shift, rank.pending
        code, target, which = program.code, program.target, program.ops.which
        start, arrival, end = rank.start, rank.arrival, rank.end
        for op in range(rank.op, rank.stop):
            kind = code[op]
            if kind == WAIT:  # the host issues nothing
                at = op + shift
                start[at] = arrival[at] = now
                pending = awaited.pop(target[op])
                if not pending.over:
                    rank.op = op
                    self._is_at(rank, op)
                    pending.waiting.append(rank)
                    return False
                end[at] = now
                continue
            own = which[op]
            if rank.issued < op:
                rank.host += program.hosts[own]
                rank.issued = op
            if rank.host > now:
                rank.op = op
                self._is_at(rank, op)
                rank.held = True
                self.clock.at(rank.host, self._issued, rank)
                return False
            amount = program.amounts[own]
            if kind == START and amount == 0.0:
                arrival[op + shift] = now
                self._arrive(rank, op, target[op])
            elif self._begin(rank, op, amount):
                return False
        rank.op = rank.stop
        return True

    def _next_part(self, rank: Member) -> bool:
        """Come to the next part of the plan; tell if its ops are to be walked, and it is not one that takes time."""
        part = rank.part
        if part == len(rank.stops):
            self._is_at(rank, rank.op)
            return False
        rank.stop, rank.shift = rank.stops[part], rank.shifts[part]
        rank.part = part + 1
        if rank.part == rank.watched and self.observer is not None:
            self.clock.when_over(self.observer.look)
        segment = rank.segments[rank.numbers[part]]
        if segment is None:
            return True
        if rank.disturbed or rank.host + segment.lead_seconds > self.clock.now:
            rank.walk()
            return True
        rank.op = rank.stop
        self._take(rank, segment)
        return False

    def _begin(self, rank: Member, op: int, amount: float) -> bool:
        """Begin to compute, or come to a collective; tell if that takes time."""
        now, computes = self.clock.now, rank.program.code[op] == COMPUTE
        at = op + rank.shift
        if computes:
            rank.start[at] = rank.arrival[at] = now
        if computes or (amount > 0.0 and rank.prepared < op):  # a CPU issues what it runs itself
            rank.prepared = op
            rank.op = op
            self._is_at(rank, BUSY)
            if amount > 0.0:
                self._work(rank, amount * rank.slowness)
                return True
        if computes:
            rank.end[at] = now
        else:
            rank.arrival[at] = now
            self._arrive(rank, op, rank.program.target[op])
        return False

    def _issued(self, rank: Member, _plan: int) -> None:
        """The host has issued the op that the device waits for."""
        self._go_on(rank)

    def _is_at(self, rank: Member, op: int) -> None:
        """The compute stream stands still at an op, or is BUSY: that changes the speed of collectives."""
        if op == rank.idle_at:
            return
        rank.idle_at = op
        for stream in rank.under_way:
            if stream.flow is not None and (limit := stream.limit()) != stream.flow.limit:
                self.links.limit(stream.flow, limit)

    # Work

    def _take(self, rank: Member, segment: Segment) -> None:
        """Begin a segment, which takes now what it takes alone or beside messages."""
        now = self.clock.now
        rank.host += segment.host_seconds
        rank.issued = rank.op - 1
        rank.segment, rank.since, rank.works_at = segment, now, SEGMENT
        rank.alone = not rank.collectives and not rank.quiet
        rank.run = Run(segment, now, slow=True) if rank.collectives and self.stretch != 1.0 else None
        self._is_at(rank, BUSY)
        if rank.run is None:
            rank.plan += 1
            self.clock.at(now + segment.seconds, self._done, rank, rank.plan)
        else:
            self._plan(rank)

    def _work(self, rank: Member, seconds: float) -> None:
        """Begin an op that takes so long undisturbed."""
        rank.remaining, rank.since, rank.works_at = seconds, self.clock.now, OP
        self._plan(rank)

    def _plan(self, rank: Member) -> None:
        """Note when a rank will be done, if nothing changes."""
        rank.plan += 1
        if rank.works_at == OP:
            left = max(0.0, rank.remaining) * (self.stretch if rank.collectives else 1.0)
        elif rank.run is not None:
            left = max(0.0, rank.run.left_seconds())
        else:
            assert rank.segment is not None
            self.clock.at(rank.since + rank.segment.seconds, self._done, rank, rank.plan)
            return
        self.clock.at(self.clock.now + left, self._done, rank, rank.plan)

    def _done(self, rank: Member, plan: int) -> None:
        """An op or a segment is done, unless that was planned anew."""
        if plan != rank.plan:
            return
        if rank.works_at == SEGMENT:
            rank.known.add(rank.part - 1, rank.since, rank.run, alone=rank.alone)
        elif rank.program.code[rank.op] == COMPUTE:
            rank.end[rank.op + rank.shift] = self.clock.now
            rank.op += 1
        rank.works_at = NOTHING
        self._go_on(rank)

    def _change_pace(self, rank: Member, *, slow: bool) -> None:
        """The first collective beside a rank's work begins, or the last one ends."""
        rank.alone = False
        if self.stretch == 1.0:
            return
        now = self.clock.now
        if rank.works_at == OP:
            rank.remaining -= (now - rank.since) / (1.0 if slow else self.stretch)
            rank.since = now
        else:
            assert rank.segment is not None
            if rank.run is None:
                rank.run = Run(rank.segment, rank.since, slow=False)
            rank.run.change(now, slow=slow)
        self._plan(rank)

    # Collectives

    def _arrive(self, rank: Member, op: int, call: int) -> None:
        """A member's stream has come to its next collective."""
        known, member = rank.calls[call], (rank, op + rank.shift)
        assert known is not None
        stream, transfer = known
        queue, place = stream.queue, stream.arrived[rank.number] - stream.done
        stream.arrived[rank.number] += 1
        if place == len(queue):
            pending = rank.pending[op] = Pending(call, transfer, member)
            queue.append(pending)
            if not place and stream.disturbs:
                stream.disturb(1)
            if stream.size > 1:
                return
        else:
            pending = rank.pending[op] = queue[place]
            if pending.call != call:
                raise fail("schedule", differing(rank.program, op, pending.call, call))
            pending.arrived.append(member)
        if not place and not stream.running and len(pending.arrived) == stream.size:
            self._begin_first(stream)

    def _begin_first(self, stream: Stream) -> None:
        """Begin the collective that all members have come to."""
        stream.running = True
        pending, now = stream.queue[0], self.clock.now
        for rank, at in pending.arrived:
            rank.start[at] = now
            if stream.quiet:
                rank.quiet += 1
                rank.alone = False
            else:
                rank.collectives += 1
                if rank.works_at != NOTHING and rank.collectives == 1:
                    self._change_pace(rank, slow=True)
                if not stream.steady:
                    rank.under_way.append(stream)
        transfer = pending.transfer
        if stream.steady and not transfer.demands:
            end = now + transfer.startup_seconds + transfer.transfer_seconds / stream.beside
            self.clock.at(end, self._finish, stream)
        elif stream.steady:
            stream.flow = self.links.begin_after_startup(transfer, stream.beside, stream.finished)
        else:
            self.clock.at(now + transfer.startup_seconds, self._start_flow, stream)

    def _start_flow(self, stream: Stream, _plan: int) -> None:
        """The start-up of a collective is over."""
        transfer = stream.queue[0].transfer
        stream.flow = self.links.begin(transfer, stream.limit(), stream.finished)

    def _finish(self, stream: Stream, _plan: int) -> None:
        now, pending, steady = self.clock.now, stream.queue.popleft(), stream.steady
        if not stream.queue and stream.disturbs:
            stream.disturb(-1)
        share = 1.0 if stream.flow is None else stream.flow.share(now)
        stream.flow = None
        stream.done += 1
        stream.running = False
        for rank, at in pending.arrived:
            rank.end[at] = now
            if share != 1.0:
                rank.share[at] = share
            if stream.quiet:
                rank.quiet -= 1
            else:
                rank.collectives -= 1
                if rank.works_at != NOTHING and not rank.collectives:
                    self._change_pace(rank, slow=False)
                if not steady:
                    rank.under_way.remove(stream)
        pending.over = True
        if stream.queue and len(stream.queue[0].arrived) == stream.size:
            self._begin_first(stream)
        for rank in pending.waiting:
            rank.end[rank.op + rank.shift] = now
            rank.op += 1
            self._go_on(rank)
