"""The all-ranks engine for jobs with several roles: all ranks of a role at once, roles in turn.

The rules are those of `twin.engine.ranks`; ranks of a role lie in a row instead of a cube. A role goes on until it
waits for what another one has not come to. A message that a role is ready for may begin beside its compute, once the
other side comes: then it hesitates before it calls an op done, and of all that hesitate the one goes on that would be
done first, in the mean over its ranks. So without differences among ranks of a role every event is that of the folded
simulation; with them, a message that begins on some ranks before that does not slow what was done by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np

from twin.engine.coverage import stretched
from twin.engine.cube import Floats
from twin.engine.flows import Flow, Stream
from twin.engine.layout import NOWHERE, Ints
from twin.engine.program import COMPUTE, START
from twin.engine.ranks import Interference, Outcome, Recorded, Variation
from twin.engine.simulate import Part, Simulation
from twin.engine.streams import check_ended
from twin.schedule.ops import axis_of

Signal = float | None
"""Why a role does not go on: it waits for another one, or hesitates with an op that would be done then."""
Walk = Generator[Signal, bool, None]
OPS = 1 << 32
"""More than a program has: ops of different roles have different random factors."""


@dataclass
class Meeting:
    """One collective of ranks of several roles; times are of groups, None until all have come."""

    call: int
    came: dict[int, tuple[int, Floats]] = field(default_factory=dict)
    """Of each role: its op, and when its ranks came."""
    gate: Floats | None = None
    begin: Floats | None = None
    end: Floats | None = None


@dataclass
class Unit:
    """The groups of a communicator whose members are of the same roles."""

    name: str
    roles: tuple[int, ...]
    members: Ints
    """(groups, size): places among the ranks of the roles, these one after another."""
    group: dict[int, Ints]
    """Of each role: the group of each of its ranks."""
    group_class: Ints
    first: int
    """The role of the groups' first members."""
    rows: Ints
    """Row of each group's first member in the nominal timeline of that role."""
    stream: Stream | None
    """Of one role's groups."""
    meetings: list[Meeting] = field(default_factory=list)
    arrived: dict[int, int] = field(default_factory=dict)
    last_end: Floats | None = None

    @property
    def axis(self) -> str:
        """What its time is booked under."""
        return axis_of(self.name)


class _Role:
    """The ranks of one role: `now` is when each one's compute stream is free."""

    def __init__(self, number: int, part: Part, slowness: Floats, record: Sequence[int]) -> None:
        self.number, self.part, self.slowness = number, part, slowness[part.role.ranks]
        self.now = np.zeros(len(part.role.ranks))
        self.units: list[Unit | None] = []
        self.flows: dict[int, Flow] = {}
        self.meetings: dict[int, tuple[Unit, Meeting]] = {}
        """By op: those that were started and have not ended for sure."""
        self.streams: list[Unit] = []
        self.op = 0
        self.signal: Signal = None
        self.host = np.zeros_like(self.now)
        chosen = np.flatnonzero(np.isin(part.role.ranks, np.array(record, dtype=np.int64)))
        self.chosen = chosen
        self.recorded = Recorded(*(np.zeros((len(chosen), len(part.program))) for _ in range(3)))

    def keep(self, into: Floats, op: int, values: Floats | None = None) -> None:
        """Keep times of the ranks that are recorded."""
        if len(self.chosen):
            into[:, op] = (self.now if values is None else values)[self.chosen]


def run(
    nominal: Simulation, variation: Variation, interference: Interference, record: Sequence[int] = ()
) -> tuple[Outcome, tuple[Recorded, ...]]:
    """Simulate one step; also return the events of the ranks in `record` by role, ranks ascending.

    `nominal` is the folded simulation, from which it is known what links let a collective have.
    """
    return _Run(nominal, variation, interference, record).outcome()


class _Run:
    def __init__(
        self, nominal: Simulation, variation: Variation, interference: Interference, record: Sequence[int]
    ) -> None:
        self._nominal, self._variation = nominal, variation
        self._stretch, self._beside = 1.0 + interference.compute, 1.0 / (1.0 + interference.collective)
        slowness = np.ascontiguousarray(variation.slowness).reshape(-1)
        self.roles = [_Role(i, part, slowness, record) for i, part in enumerate(nominal.parts)]
        self._role_of, self._place = (np.zeros(nominal.job.ranks, dtype=np.int64) for _ in range(2))
        for role in self.roles:
            ranks = role.part.role.ranks
            self._role_of[ranks], self._place[ranks] = role.number, np.arange(len(ranks))
        axes = nominal.axes
        zeros = {axis: np.zeros(nominal.job.ranks) for axis in axes}
        self._exposed, self._peers = zeros, {axis: times.copy() for axis, times in zeros.items()}
        self._phases: dict[str, float] = {}
        self._communication = dict.fromkeys(axes, 0.0)
        self._latest = 0.0
        self._ready = deque(self.roles)
        self._connect()
        self._go()

    def _connect(self) -> None:
        """Divide the communicators' groups by the roles of their members."""
        calls = self.roles[0].part.program.calls
        units = {name: self._units(name) for name in dict.fromkeys(name for name, _, _ in calls)}
        for role in self.roles:
            own = {name: next((u for u in of if role.number in u.roles), None) for name, of in units.items()}
            role.units = [own[name] for name, _, _ in calls]
            role.streams = [unit for unit in own.values() if unit is not None and unit.stream is not None]

    def _units(self, name: str) -> list[Unit]:
        communicator, partition = self._nominal.communicators[name], self._nominal.partition
        members = communicator.members
        of_class = np.array(partition.group_class_of_rank_class[communicator.partition])
        roles = self._role_of[members]
        found, keys = [], np.sort(roles, axis=1)
        for key in np.unique(keys, axis=0):
            own = members[(keys == key).all(axis=1)]
            between = tuple(dict.fromkeys(key.tolist()))
            sizes = [len(self.roles[r].now) for r in between]
            begin = dict(zip(between, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
            at = np.vectorize(begin.get, otypes=[np.int64])(self._role_of[own]) + self._place[own]
            group_of = np.full(sum(sizes), NOWHERE, dtype=np.int64)
            group_of[at.ravel()] = np.repeat(np.arange(len(own)), own.shape[1])
            group = {r: group_of[begin[r] : begin[r] + size] for r, size in zip(between, sizes, strict=True)}
            first = int(self._role_of[own[0, 0]])
            classes = partition.rank_class[own[:, 0]]
            rows = np.searchsorted(self.roles[first].part.classes, classes)
            stream = Stream(axis_of(name), 0, self._beside) if len(between) == 1 else None
            found.append(Unit(name, between, at, group, of_class[classes], first, rows, stream))
        return found

    def _go(self) -> None:
        """Let roles go on in turn; where all hesitate or wait, the one that is done first."""
        walks: dict[int, Walk] = {role.number: self._walk(role) for role in self.roles}
        for walk in walks.values():
            next(walk)
        while walks:
            hesitating = [role for role in self.roles if role.signal is not None]
            let = not self._ready
            if let and not hesitating:
                check_ended((r.number, r.part.program, r.op) for r in self.roles if r.number in walks)
            role = min(hesitating, key=lambda r: r.signal or 0.0) if let else self._ready.popleft()
            role.signal = None
            try:
                role.signal = walks[role.number].send(let)
            except StopIteration:
                del walks[role.number]

    def _walk(self, role: _Role) -> Walk:
        yield None
        program, host = role.part.program, 0.0
        for op, (code, amount, target, issue) in enumerate(
            zip(program.code, program.amount, program.target, program.host_seconds, strict=True)
        ):
            host += issue
            role.op = op
            if code == COMPUTE:
                self._wait_for_host(role, host)
                role.keep(role.recorded.start, op)
                role.keep(role.recorded.arrival, op)
                before = float(role.now.sum())
                yield from self._work(role, op, amount)
                phase = program.ops[op][0].phase
                self._phases[phase] = self._phases.get(phase, 0.0) + float(role.now.sum()) - before
                role.keep(role.recorded.end, op)
            elif code == START:
                self._wait_for_host(role, host)
                before_start = role.now
                yield from self._work(role, op, amount)
                role.host += role.now - before_start
                role.keep(role.recorded.arrival, op)
                self._start(role, op, target)
            else:
                yield from self._wait(role, op, target)
        for unit in role.streams:
            assert unit.stream is not None
            unit.stream.at_rest(role.now[unit.members].max(axis=1), np.inf)
            for flow in unit.stream.open:
                self._end(role, unit, flow.op, flow.begin, flow.end)

    def _wait_for_host(self, role: _Role, host: float) -> None:
        before = role.now
        if host > before.min():
            role.now = np.maximum(before, host)
            role.host += role.now - before
            self._at_rest(role, before)

    def _work(self, role: _Role, op: int, amount: float) -> Walk:
        """Compute so many seconds' worth; hesitate while something may yet begin beside it."""
        if amount == 0.0:
            return
        work = amount * role.slowness
        if (jitter := self._variation.compute) is not None:
            work *= jitter.of(op + role.number * OPS, len(work))
        while True:
            done = role.now + work
            if self._stretch != 1.0 and (running := self._running(role)):
                done = stretched(role.now, work.copy(), self._stretch, running)
            open_ = self._stretch != 1.0 and any(meeting.end is None for _, meeting in role.meetings.values())
            if not open_ or (yield float(done.mean())):
                break
        role.now = done

    def _running(self, role: _Role) -> list[tuple[Floats, Floats]]:
        """Return begin and end of what may run beside a role's compute."""
        found = []
        for unit in role.streams:
            assert unit.stream is not None
            own = unit.group[role.number]
            found += [(flow.begin[own], flow.end[own]) for flow in unit.stream.open if not flow.over]
        earliest = role.now.min()
        for unit, meeting in role.meetings.values():
            if meeting.end is not None and meeting.begin is not None and meeting.end.max() > earliest:
                own = unit.group[role.number]
                found.append((meeting.begin[own], meeting.end[own]))
        return found

    def _price(self, unit: Unit, call: int, op: int) -> tuple[Floats, Floats]:
        """Seconds to start up and to transfer of each group, links shared as in the folded simulation."""
        nominal = self._nominal
        relation = nominal.communicators[unit.name].partition
        costs = [nominal.prices.costs[call][group.pattern] for group in nominal.partition.groups[relation]]
        startup = np.array([cost.startup_seconds for cost in costs])[unit.group_class]
        transfer = np.array([cost.transfer_seconds for cost in costs])[unit.group_class]
        share = self.roles[unit.first].part.timeline.share[unit.rows, op]
        if (noise := self._variation.collective) is not None:
            factor = noise.of(op + unit.first * OPS, len(startup))
            return startup * factor, transfer * factor / share
        return startup, transfer / share

    def _start(self, role: _Role, op: int, call: int) -> None:
        unit = role.units[call]
        assert unit is not None
        if unit.stream is not None:
            startup, transfer = self._price(unit, call, op)
            role.flows[op] = unit.stream.start(op, role.now[unit.members].max(axis=1), startup, transfer)
            return
        number = unit.arrived.get(role.number, 0)
        unit.arrived[role.number] = number + 1
        if number == len(unit.meetings):
            unit.meetings.append(Meeting(call))
        meeting = unit.meetings[number]
        meeting.came[role.number] = (op, role.now)
        role.meetings[op] = (unit, meeting)
        if len(meeting.came) == len(unit.roles):
            self._meet(unit, meeting)
            self._ready.extend(
                self.roles[r] for r in unit.roles if r != role.number and self.roles[r] not in self._ready
            )

    def _meet(self, unit: Unit, meeting: Meeting) -> None:
        """All have come: from now on it is known when it ends."""
        came = np.concatenate([meeting.came[r][1] for r in unit.roles])
        startup, transfer = self._price(unit, meeting.call, meeting.came[unit.first][0])
        meeting.gate = came[unit.members].max(axis=1)
        meeting.begin = meeting.gate if unit.last_end is None else np.maximum(meeting.gate, unit.last_end)
        meeting.end = unit.last_end = meeting.begin + (startup + transfer / self._beside)
        for r in unit.roles:
            self._end(self.roles[r], unit, meeting.came[r][0], meeting.begin, meeting.end)

    def _end(self, role: _Role, unit: Unit, op: int, begin: Floats, end: Floats) -> None:
        """Note when a collective ran."""
        own = unit.group[role.number]
        self._latest = max(self._latest, float(end.max()))
        role.keep(role.recorded.start, op, begin[own])
        role.keep(role.recorded.end, op, end[own])

    def _wait(self, role: _Role, op: int, start: int) -> Walk:
        before = role.now
        role.keep(role.recorded.start, op)
        role.keep(role.recorded.arrival, op)
        if start in role.flows:
            unit = role.units[role.part.program.target[start]]
            assert unit is not None
            assert unit.stream is not None
            flow = unit.stream.take(start, before[unit.members].max(axis=1))
            gate, begin, end = flow.gate, flow.begin, flow.end
            del role.flows[start]
            self._end(role, unit, start, begin, end)
        else:
            unit, meeting = role.meetings[start]
            while meeting.end is None:
                yield None
            assert meeting.gate is not None
            assert meeting.begin is not None
            gate, begin, end = meeting.gate, meeting.begin, meeting.end
            del role.meetings[start]
        own, ranks = unit.group[role.number], role.part.role.ranks
        come = np.maximum(before, gate[own])
        role.now = np.maximum(before, end[own])
        self._exposed[unit.axis][ranks] += role.now - come
        self._peers[unit.axis][ranks] += come - before
        self._communication[unit.axis] += float((end - begin)[own].sum())
        self._at_rest(role, before)
        role.keep(role.recorded.end, op)

    def _at_rest(self, role: _Role, since: Floats) -> None:
        """All ranks of the role stood still at the same op, from `since` until now."""
        for unit in role.streams:
            assert unit.stream is not None
            if unit.stream.open:
                until = role.now[unit.members].min(axis=1)
                unit.stream.at_rest(since[unit.members].max(axis=1), until)
                unit.stream.passed(until)

    def outcome(self) -> tuple[Outcome, tuple[Recorded, ...]]:
        """Everything that is wanted of the run."""
        job, sizes = self._nominal.job, self._nominal.mesh.sizes
        end, host = np.zeros(job.ranks), np.zeros(job.ranks)
        for role in self.roles:
            end[role.part.role.ranks], host[role.part.role.ranks] = role.now, role.host

        def shaped(of: dict[str, Floats]) -> dict[str, Floats]:
            return {axis: times.reshape(sizes) for axis, times in of.items()}

        found = Outcome(
            end=end.reshape(sizes),
            last_end_seconds=max(self._latest, float(end.max())),
            exposed=shaped(self._exposed),
            peers=shaped(self._peers),
            host=host.reshape(sizes),
            compute_by_phase={phase: seconds / job.ranks for phase, seconds in self._phases.items()},
            communication_by_axis={axis: seconds / job.ranks for axis, seconds in self._communication.items()},
            transfer={},
            recorded=Recorded(*(np.zeros((0, 0)) for _ in range(3))),
        )
        return found, tuple(role.recorded for role in self.roles)
