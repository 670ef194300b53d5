"""Devices and communicators of the SimPy engine: who computes, and which collective runs when.

The rules are those of `twin.engine.des`.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import simpy

from twin.description.problems import fail
from twin.engine.links import ActiveFlow, Links, Transfer
from twin.engine.program import Program

BUSY = -1
"""In place of an op, while the compute stream works."""


MAX_SHOWN = 4
"""Ranks that wait for ever, of which the message tells."""


def listen(event: simpy.Event, callback: Callable[[Any], None]) -> None:
    """Call back when an event happens."""
    assert event.callbacks is not None
    event.callbacks.append(callback)


class Timers:
    """What links need of SimPy's environment (`twin.engine.links.Environment`)."""

    def __init__(self, environment: simpy.Environment) -> None:
        self._environment = environment

    @property
    def now(self) -> float:
        """Seconds since the step began."""
        return self._environment.now

    def after(self, delay: float, happen: Callable[[Any, int], None], subject: Any, plan: int) -> None:
        """Call `happen(subject, plan)` so many seconds from now."""
        listen(self._environment.timeout(delay), lambda _event: happen(subject, plan))

    def at(self, time: float, happen: Callable[[Any, int], None], subject: Any, plan: int) -> None:
        """Call `happen(subject, plan)` then."""
        self.after(time - self.now, happen, subject, plan)

    def before_time_passes(self, do: Callable[[], None]) -> None:
        """Call `do()` at once."""
        do()


class MismatchError(RuntimeError):
    """Members of a group have come to different collectives."""


def differing(program: Program, op: int, theirs: int, ours: int) -> str:
    """Say that a peer has come to another call than a rank at an op."""
    (_, kind, size), (_, own_kind, own_size) = program.calls[theirs], program.calls[ours]
    return (
        f"{program.name(op)}: a peer's op in the same place is {kind} of {size:,.0f} bytes, "
        f"this one {own_kind} of {own_size:,.0f} bytes; members must start the same ops in the same order"
    )


def check_ended(stuck: Iterable[tuple[int, Program, int]]) -> None:
    """Refuse programs in which somebody waits for what nobody sends: rank classes, each at an op of its program."""
    names = [f"class {number} at {program.name(op)}" for number, program, op in islice(stuck, MAX_SHOWN)]
    if names:
        raise fail(
            "schedule",
            f"ranks wait for each other for ever: {'; '.join(names)}; each op needs its peers' ops, in the same order",
        )


@dataclass
class Recorder:
    """Times of every op, a row for each rank class."""

    start: list[array[float]]
    end: list[array[float]]
    arrival: list[array[float]]
    share: list[array[float]]


class Rank:
    """The device of a rank class: one compute op at a time, slower beside collectives."""

    def __init__(
        self,
        environment: simpy.Environment,
        links: Links,
        number: int,
        program: Program,
        slowness: float,
        stretch: float,
        core_use: tuple[tuple[int, float], ...],
    ) -> None:
        self.number = number
        self.program = program
        self.slowness = slowness
        self.at = 0
        """Op that the rank has come to."""
        self._environment = environment
        self._links = links
        self._core_use = core_use
        self._flow: ActiveFlow | None = None
        self._stretch = stretch
        self._collectives = 0
        self._remaining = 0.0
        self._since = 0.0
        self._finished: simpy.Event | None = None
        self._plan = 0
        self.idle_at = 0
        """Op at which the compute stream stands still, for a wait or the host; BUSY if it works."""
        self.streams: list[Stream] = []
        """Streams on which one of the rank's collectives is running."""

    def stands_still(self, op: int) -> None:
        """The compute stream waits at an op: collectives have the device to themselves."""
        self._is_at(op)

    def goes_on(self) -> None:
        """Compute begins, if the stream stood still."""
        self._is_at(BUSY)

    def _is_at(self, op: int) -> None:
        if op == self.idle_at:
            return
        self.idle_at = op
        for stream in self.streams:
            stream.member_changed()

    def compute(self, seconds: float) -> simpy.Event:
        """Begin work that takes so long undisturbed; the event happens when it is done."""
        if self._core_use:
            return self._compute_on_shared_cores(seconds)
        self._remaining = seconds
        self._since = self._environment.now
        self._finished = self._environment.event()
        self._schedule()
        return self._finished

    def _compute_on_shared_cores(self, seconds: float) -> simpy.Event:
        """Compute is a flow like any other, and the cores are what it shares."""
        finished = self._environment.event()

        def finish() -> None:
            self._flow = None
            finished.succeed()

        work = Transfer(0.0, seconds, self._core_use, 0.0, core_rate=1.0)
        self._flow = self._links.begin(work, 1.0 / self._current_stretch, finish)
        return finished

    def collective_begins(self, stream: Stream) -> None:
        """Compute slows down from now on."""
        self._settle()
        self.streams.append(stream)
        self._collectives += 1
        if self._collectives == 1:
            self._change_stretch()

    def collective_ends(self, stream: Stream) -> None:
        """Compute is free again if this was the last one."""
        self._settle()
        self.streams.remove(stream)
        self._collectives -= 1
        if self._collectives == 0:
            self._change_stretch()

    def _change_stretch(self) -> None:
        if self._flow is not None:
            self._links.limit(self._flow, 1.0 / self._current_stretch)
        elif self._finished is not None:
            self._schedule()

    def _settle(self) -> None:
        now = self._environment.now
        if self._finished is not None:
            self._remaining -= (now - self._since) / self._current_stretch
        self._since = now

    @property
    def _current_stretch(self) -> float:
        return self._stretch if self._collectives else 1.0

    def _schedule(self) -> None:
        self._plan += 1
        plan = self._plan
        timer = self._environment.timeout(max(0.0, self._remaining) * self._current_stretch)

        def finish(_event: simpy.Event) -> None:
            if plan == self._plan and self._finished is not None:
                finished, self._finished = self._finished, None
                finished.succeed()

        listen(timer, finish)


@dataclass
class _Pending:
    """One collective in a stream's queue."""

    call: int
    transfer: Transfer
    done: simpy.Event
    ops: list[tuple[int, int]] = field(default_factory=list)
    """(rank class, op index) of the members that have arrived."""
    flow: ActiveFlow | None = None
    """Its transfer, once that has begun."""
    ended: float | None = None
    share: float = 1.0


class Stream:
    """The queue of one communicator on one class of groups: in order, all members together, so many at once."""

    def __init__(
        self,
        environment: simpy.Environment,
        links: Links,
        members: list[Rank],
        recorder: Recorder,
        beside: float,
        *,
        quiet: bool = False,
        at_once: int = 1,
    ) -> None:
        self._environment = environment
        self._links = links
        self._members = members
        self._several_roles = any(member.program is not members[0].program for member in members)
        self._beside = 1.0 if quiet else beside
        self._loud = () if quiet else members
        """Members whose compute it slows."""
        self._recorder = recorder
        self._queue: list[_Pending] = []
        """Collectives that some members have come to and that do not run yet."""
        self._running: list[_Pending] = []
        self._at_once = at_once
        self._untold: deque[_Pending] = deque()
        """What has begun, in order: those that run at once are told one behind the other, as traces have them."""
        self._last_end = 0.0
        self._arrived = dict.fromkeys((m.number for m in members), 0)
        self._begun = 0

    def arrive(self, rank: Rank, op: int, call: int, transfer: Transfer) -> simpy.Event:
        """Note that a member's stream has come to its next collective."""
        number = self._arrived[rank.number]
        self._arrived[rank.number] = number + 1
        if number - self._begun == len(self._queue):
            self._queue.append(_Pending(call, transfer, self._environment.event()))
        pending = self._queue[number - self._begun]
        if pending.call != call:
            raise MismatchError(differing(rank.program, op, pending.call, call))
        pending.ops.append((rank.number, op))
        self._begin_if_ready()
        return pending.done

    def _begin_if_ready(self) -> None:
        if len(self._running) == self._at_once or not self._queue or len(self._queue[0].ops) < len(self._members):
            return
        pending = self._queue.pop(0)
        self._running.append(pending)
        self._untold.append(pending)
        self._begun += 1
        now = self._environment.now
        for rank, op in pending.ops:
            self._recorder.start[rank][op] = now
        for member in self._loud:
            member.collective_begins(self)

        def start_flow(_event: simpy.Event) -> None:
            pending.flow = self._links.begin(pending.transfer, self._limit(), lambda: self._finish(pending))

        listen(self._environment.timeout(pending.transfer.startup_seconds), start_flow)

    def _limit(self) -> float:
        if self._several_roles:  # ops of different programs cannot be the same one
            return self._beside
        op = self._members[0].idle_at
        at_rest = op != BUSY and all(member.idle_at == op for member in self._members)
        return 1.0 if at_rest else self._beside

    def member_changed(self) -> None:
        """A member's compute stream has begun or ended a wait."""
        limit = self._limit()
        for pending in self._running:
            if pending.flow is not None and limit != pending.flow.limit:
                self._links.limit(pending.flow, limit)

    def _finish(self, pending: _Pending) -> None:
        assert pending.flow is not None
        pending.ended = self._environment.now
        pending.share = pending.flow.share(pending.ended)
        while self._untold and (ended := self._untold[0].ended) is not None:
            self._tell(self._untold.popleft(), ended)
        for member in self._loud:
            member.collective_ends(self)
        self._running.remove(pending)
        pending.done.succeed()
        self._begin_if_ready()

    def _tell(self, pending: _Pending, ended: float) -> None:
        """Record when a collective ran: no earlier than the one that began before it ended."""
        before, self._last_end = self._last_end, max(ended, self._last_end)
        for rank, op in pending.ops:
            start = self._recorder.start[rank]
            start[op] = max(start[op], before)
            self._recorder.end[rank][op] = self._last_end
            self._recorder.share[rank][op] = pending.share
