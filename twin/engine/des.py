"""The SimPy engine: the reference for when everything happens.

Each rank (or class of ranks with the same future) is a process that walks through its program.

* Compute runs in order on the rank's compute stream, no sooner than the host has issued it.
  While one of the rank's collectives runs beside it, it is slower by the machine's
  interference factor.
* A collective runs at full speed while all of its members stand still at the same op of their
  program, else it is slower by another factor. (Members at different ops are almost never all
  idle at once, and this way what slows a collective follows from program order alone, which is
  what lets the all-ranks engine agree exactly.)
* Members that run different programs (a message between pipeline stages) are never at the same op: what
  joins them is taken to run beside compute.
* A collective starts when its last member has arrived and the communicator's previous
  collective is done. After its start-up it is a flow that shares links with all others.
* Time is in seconds from the start of the step. Same job, same result, to the bit.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from twin.description.problems import fail
from twin.engine.layout import NOWHERE
from twin.engine.links import ActiveFlow, Links, Transfer, listen
from twin.engine.program import COMPUTE, START, Program

Process = Generator[simpy.Event, None, None]
BUSY = -1
MAX_SHOWN = 4
"""Ranks that wait for ever, of which the message tells."""


@dataclass(frozen=True)
class Setting:
    """What the engine needs besides the program: who meets whom, and at which price.

    `group_class[communicator][rank class]` is the group class a rank class belongs to, NOWHERE if none;
    `members[communicator][group class]` are the rank classes in it;
    `transfers[call][group class]` the price; `slowness[rank class]` multiplies compute time.
    """

    group_class: dict[str, list[int]]
    members: dict[str, list[tuple[int, ...]]]
    transfers: list[list[Transfer]]
    capacity: list[float]
    slowness: list[float]
    compute_slowdown: float
    collective_slowdown: float
    compute_factor: list[list[float]] | None = None
    """[op][rank class]: further factors on compute time; none if absent."""
    collective_factor: list[list[float]] | None = None
    """[op][group class of its communicator]: factors on collectives' times; none if absent."""
    core_use: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    """What each rank class demands of the cores it shares while it computes; empty: it has its own."""
    cores: frozenset[int] = frozenset()
    """Which resources are cores."""
    role: list[int] = field(default_factory=list)
    """Which of the programs each rank class runs; empty: there is one."""


@dataclass(frozen=True)
class Timeline:
    """When each op of the rank classes of one role ran, seconds, arrays (rank classes, ops).

    For a wait: from when the stream came to it until it could go on. `arrival` is when the
    stream came to a collective; `start` when its last member had.
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    arrival: NDArray[np.float64]
    share: NDArray[np.float64]
    """Of the speed that a collective's transfer could have had, how much links let it have."""

    @property
    def step_seconds(self) -> float:
        """Last end minus first start."""
        return float(self.end.max()) if self.end.size else 0.0


def run(programs: Sequence[Program], setting: Setting) -> list[Timeline]:
    """Simulate one step and return when everything happened, by role: rank classes in ascending order.

    Raises DescriptionError if ranks wait for each other for ever, or do not mean the same op.
    """
    role = setting.role or [0] * len(setting.slowness)
    recorder = _Recorder(*([array("d", bytes(8 * len(programs[r]))) for r in role] for _ in range(4)))
    environment = simpy.Environment()
    links = Links(environment, setting.capacity, setting.cores)
    beside = 1.0 / (1.0 + setting.collective_slowdown)
    core_use = setting.core_use or [()] * len(setting.slowness)
    stretch = 1.0 + setting.compute_slowdown
    ranks = [
        _Rank(environment, links, c, programs[role[c]], slow, stretch, use)
        for c, (slow, use) in enumerate(zip(setting.slowness, core_use, strict=True))
    ]
    streams = {
        communicator: [_Stream(environment, links, [ranks[m] for m in of], recorder, beside) for of in members]
        for communicator, members in setting.members.items()
    }
    for rank in ranks:
        indices = {c: of[rank.number] for c, of in setting.group_class.items() if of[rank.number] != NOWHERE}
        own = {c: streams[c][index] for c, index in indices.items()}
        transfers = [
            setting.transfers[i][indices[communicator]] if communicator in indices else None
            for i, (communicator, _, _) in enumerate(rank.program.calls)
        ]
        factors, noise = _factors_of(rank.number, rank.program, setting, indices)
        environment.process(_walk(environment, rank, own, transfers, recorder, factors, noise))
    environment.run()
    _check_ended(ranks)
    recorded = (recorder.start, recorder.end, recorder.arrival, recorder.share)
    of_role = [[c for c, r in enumerate(role) if r == number] for number in range(len(programs))]
    return [Timeline(*(np.array([rows[c] for c in classes]) for rows in recorded)) for classes in of_role]


def _check_ended(ranks: Sequence[_Rank]) -> None:
    """Refuse programs in which somebody waits for what nobody sends."""
    stuck = [rank for rank in ranks if rank.at < len(rank.program)]
    if not stuck:
        return
    names = "; ".join(f"class {r.number} at {r.program.name(r.at)}" for r in stuck[:MAX_SHOWN])
    raise fail(
        "schedule", f"ranks wait for each other for ever: {names}; each op needs its peers' ops, in the same order"
    )


@dataclass
class _Recorder:
    start: list[array[float]]
    end: list[array[float]]
    arrival: list[array[float]]
    share: list[array[float]]


def _factors_of(
    rank: int, program: Program, setting: Setting, group: Mapping[str, int]
) -> tuple[list[float] | None, list[float] | None]:
    """Return one rank's factors on its compute and on its collectives, by op."""
    compute, collective = setting.compute_factor, setting.collective_factor
    return (
        None if compute is None else [row[rank] for row in compute],
        None
        if collective is None
        else [
            row[group[program.calls[target][0]]] if code == START else 1.0
            for row, code, target in zip(collective, program.code, program.target, strict=True)
        ],
    )


def _walk(
    environment: simpy.Environment,
    rank: _Rank,
    streams: dict[str, _Stream],
    transfers: Sequence[Transfer | None],
    recorder: _Recorder,
    factors: Sequence[float] | None,
    noise: Sequence[float] | None,
) -> Process:
    """One rank's program, op by op."""
    program = rank.program
    start, end, arrival = (rows[rank.number] for rows in (recorder.start, recorder.end, recorder.arrival))
    host = 0.0
    done: dict[int, simpy.Event] = {}
    call_stream = [streams.get(communicator) for communicator, _, _ in program.calls]
    slowness = [rank.slowness] * len(program) if factors is None else [rank.slowness * f for f in factors]
    for i, (code, amount, target, issue) in enumerate(
        zip(program.code, program.amount, program.target, program.host_seconds, strict=True)
    ):
        host += issue
        rank.at = i
        if code == COMPUTE:
            if host > environment.now:
                rank.stands_still(i)
                yield environment.timeout(host - environment.now)
            rank.goes_on()
            start[i] = arrival[i] = environment.now
            if amount > 0.0:
                yield rank.compute(amount * slowness[i])
            end[i] = environment.now
        elif code == START:
            if host > environment.now:
                rank.stands_still(i)
                yield environment.timeout(host - environment.now)
            if amount > 0.0:
                rank.goes_on()
                yield rank.compute(amount * slowness[i])
            arrival[i] = environment.now
            stream, transfer = call_stream[target], transfers[target]
            assert stream is not None
            assert transfer is not None
            if noise is not None:
                transfer = transfer.longer(noise[i])
            done[i] = stream.arrive(rank, i, target, transfer)
        else:
            start[i] = arrival[i] = environment.now
            event = done.pop(target)
            if not event.processed:
                rank.stands_still(i)
                yield event
            end[i] = environment.now
    rank.at = len(program)
    rank.stands_still(len(program))


class _Rank:
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
        self.streams: list[_Stream] = []
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

    def collective_begins(self, stream: _Stream) -> None:
        """Compute slows down from now on."""
        self._settle()
        self.streams.append(stream)
        self._collectives += 1
        if self._collectives == 1:
            self._change_stretch()

    def collective_ends(self, stream: _Stream) -> None:
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


class _Stream:
    """The queue of one communicator on one class of groups: in order, all members together."""

    def __init__(
        self, environment: simpy.Environment, links: Links, members: list[_Rank], recorder: _Recorder, beside: float
    ) -> None:
        self._environment = environment
        self._links = links
        self._members = members
        self._several_roles = any(member.program is not members[0].program for member in members)
        self._beside = beside
        self._flow: ActiveFlow | None = None
        self._recorder = recorder
        self._queue: list[_Pending] = []
        self._arrived = dict.fromkeys((m.number for m in members), 0)
        self._done = 0
        self._running = False

    def arrive(self, rank: _Rank, op: int, call: int, transfer: Transfer) -> simpy.Event:
        """Note that a member's stream has come to its next collective."""
        number = self._arrived[rank.number]
        self._arrived[rank.number] = number + 1
        if number - self._done == len(self._queue):
            self._queue.append(_Pending(call, transfer, self._environment.event()))
        pending = self._queue[number - self._done]
        if pending.call != call:
            theirs, ours = rank.program.calls[pending.call], rank.program.calls[call]
            raise fail(
                "schedule",
                f"{rank.program.name(op)}: a peer's op in the same place is {theirs[1]} of {theirs[2]:,.0f} bytes, "
                f"this one {ours[1]} of {ours[2]:,.0f} bytes; members must start the same ops in the same order",
            )
        pending.ops.append((rank.number, op))
        self._begin_if_ready()
        return pending.done

    def _begin_if_ready(self) -> None:
        if self._running or not self._queue or len(self._queue[0].ops) < len(self._members):
            return
        self._running = True
        pending = self._queue[0]
        now = self._environment.now
        for rank, op in pending.ops:
            self._recorder.start[rank][op] = now
        for member in self._members:
            member.collective_begins(self)

        def start_flow(_event: simpy.Event) -> None:
            self._flow = self._links.begin(pending.transfer, self._limit(), lambda: self._finish(pending))

        listen(self._environment.timeout(pending.transfer.startup_seconds), start_flow)

    def _limit(self) -> float:
        if self._several_roles:  # ops of different programs cannot be the same one
            return self._beside
        op = self._members[0].idle_at
        at_rest = op != BUSY and all(member.idle_at == op for member in self._members)
        return 1.0 if at_rest else self._beside

    def member_changed(self) -> None:
        """A member's compute stream has begun or ended a wait."""
        if self._flow is not None and (limit := self._limit()) != self._flow.limit:
            self._links.limit(self._flow, limit)

    def _finish(self, pending: _Pending) -> None:
        assert self._flow is not None
        share = self._flow.share(self._environment.now)
        self._flow = None
        now = self._environment.now
        for rank, op in pending.ops:
            self._recorder.end[rank][op] = now
            self._recorder.share[rank][op] = share
        for member in self._members:
            member.collective_ends(self)
        self._queue.pop(0)
        self._done += 1
        self._running = False
        pending.done.succeed()
        self._begin_if_ready()
