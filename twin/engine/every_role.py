"""The all-ranks engine for jobs with several roles: all ranks of a role at once, roles in turn.

The rules are those of `twin.engine.ranks`; ranks of a role lie in a row instead of a cube. A role goes on until it
waits for what another one has not come to. A message that a role is ready for may begin beside its compute, once the
other side comes: then it hesitates before it calls an op done, and of all that hesitate the one goes on that would be
done first, in the mean over its ranks. Without differences among ranks of a role every event is then that of the
folded simulation. With them a message may have begun on some ranks before that: the step is gone through again with the
begins and ends of the last time, until they stay, and every event is that of the folded simulation too. Where devices,
links and jitter are drawn, what moves less than a ten-thousandth of the step is let be: the draws are far larger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence

import numpy as np

from twin.description.problems import fail
from twin.engine.coverage import stretched
from twin.engine.cube import Floats
from twin.engine.meetings import Meeting, Ranks, Signal, Unit, units_of
from twin.engine.program import COMPUTE, START
from twin.engine.ranks import Interference, Outcome, Recorded, Variation
from twin.engine.simulation import Simulation
from twin.engine.streams import check_ended

Walk = Generator[Signal, bool, None]
Times = Mapping[tuple[str, tuple[int, ...]], Sequence[tuple[Floats, Floats] | None]]
"""Begins and ends of the collectives of each unit."""
SAME, MAX_AGAIN = 1e-12, 256
"""Of the step: what moves less between two times through it stays. What begins first is right after one time more, so
there is an end; 16 times are the most that was seen."""
SAME_OF_DRAWN, MAX_AGAIN_OF_DRAWN = 1e-4, 8
"""The same where times are drawn at random."""
OPS = 1 << 32
"""More than a program has: ops of different roles have different random factors."""


def run(
    nominal: Simulation,
    variation: Variation,
    interference: Interference,
    record: Sequence[int] = (),
    *,
    drawn: bool = False,
) -> tuple[Outcome, tuple[Recorded, ...]]:
    """Simulate one step; also return the events of the ranks in `record` by role, ranks ascending.

    `nominal` is the folded simulation, from which it is known what links let a collective have; `drawn` says whether
    something is random. Raises DescriptionError if nothing is and the step does not come to stay as it is.
    """
    same, most = (SAME_OF_DRAWN, MAX_AGAIN_OF_DRAWN) if drawn else (SAME, MAX_AGAIN)
    done = _Run(nominal, variation, interference, record, {})
    for _ in range(most):
        if not done.misjudged:
            break
        times = done.times()
        before, done = done, _Run(nominal, variation, interference, record, times)
        ends = max(float(abs(a.now - b.now).max()) for a, b in zip(before.roles, done.roles, strict=True))
        if max(ends, 0.0 if drawn else _moved(times, done.times())) <= same * done.latest:
            break
    else:
        if done.misjudged and not drawn:
            raise fail("engine", f"the step does not settle in {most} times through it; use --engine folded or des")
    return done.outcome()


def _moved(before: Times, now: Times) -> float:
    """How far any collective moved, in seconds; for ever where one ran that did not before."""
    furthest = 0.0
    for key, times in now.items():
        for old, new in zip(before[key], times, strict=True):
            if (old is None) != (new is None):
                return np.inf
            if old is not None and new is not None:
                furthest = max(furthest, *(float(abs(a - b).max()) for a, b in zip(old, new, strict=True)))
    return furthest


class _Run:
    """Once through the step; `expected` are the times of the last time."""

    def __init__(
        self,
        nominal: Simulation,
        variation: Variation,
        interference: Interference,
        record: Sequence[int],
        expected: Times,
    ) -> None:
        self._expected = expected
        self.misjudged = bool(expected)
        """Whether something may have begun earlier than was taken."""
        self._nominal, self._variation = nominal, variation
        self._stretch, self._quiet = 1.0 + interference.compute, interference.quiet
        self._speed_beside = interference.speed_beside
        slowness = np.ascontiguousarray(variation.slowness).reshape(-1)
        self.roles = [Ranks(i, part, slowness, record) for i, part in enumerate(nominal.parts)]
        axes = nominal.axes
        zeros = {axis: np.zeros(nominal.job.ranks) for axis in axes}
        self._exposed, self._peers = zeros, {axis: times.copy() for axis, times in zeros.items()}
        self._phases: dict[str, float] = {}
        self._communication = dict.fromkeys(axes, 0.0)
        self.latest = 0.0
        self._ready = deque(self.roles)
        self._connect()
        self._go()

    def _connect(self) -> None:
        """Divide the communicators' groups by the roles of their members."""
        calls = self.roles[0].part.program.calls
        units = {
            name: units_of(name, self._nominal, self.roles, self._speed_beside(name))
            for name in dict.fromkeys(name for name, _, _ in calls)
        }
        for role in self.roles:
            own = {name: next((u for u in of if role.number in u.roles), None) for name, of in units.items()}
            role.units = [own[name] for name, _, _ in calls]
            role.streams = [unit for unit in own.values() if unit is not None and unit.stream is not None]

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

    def _walk(self, role: Ranks) -> Walk:
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

    def _wait_for_host(self, role: Ranks, host: float) -> None:
        before = role.now
        if host > before.min():
            role.now = np.maximum(before, host)
            role.host += role.now - before
            self._at_rest(role, before)

    def _work(self, role: Ranks, op: int, amount: float) -> Walk:
        """Compute so many seconds' worth; hesitate while something may yet begin beside it."""
        if amount == 0.0:
            return
        work = amount * role.slowness
        if (jitter := self._variation.compute) is not None:
            work *= jitter.of(op + role.number * OPS, len(work))
        while True:
            done = role.now + work
            if self._stretch != 1.0 and (running := self._running(role, work)):
                done = stretched(role.now, work.copy(), self._stretch, running)
            if self._stretch == 1.0 or not any(m.end is None and m.expected is None for _, m in role.beside):
                break
            if (yield float(done.mean())):
                role.let = float(done.max())
                break
        role.now = done

    def _running(self, role: Ranks, work: Floats) -> list[tuple[Floats, Floats]]:
        """Return begin and end of what may run beside so many seconds of a role's compute."""
        found = []
        for unit in role.streams:
            if unit.name in self._quiet:
                continue
            assert unit.stream is not None
            own = unit.group[role.number]
            found += [(flow.begin[own], flow.end[own]) for flow in unit.stream.open if not flow.over]
        if role.beside:
            earliest = role.now.min()
            last = role.now.max() + self._stretch * work.max()
            role.beside = [(u, m) for u, m in role.beside if m.end is None or m.latest > earliest]
            for unit, meeting in role.beside:
                times = (
                    meeting.expected if meeting.begin is None or meeting.end is None else (meeting.begin, meeting.end)
                )
                if times is not None and meeting.first < last and meeting.latest > earliest:
                    own = unit.group[role.number]
                    found.append((times[0][own], times[1][own]))
        return found

    def _price(self, unit: Unit, call: int, op: int) -> tuple[Floats, Floats]:
        """Seconds to start up and to transfer of each group, links shared as in the folded simulation."""
        if call not in unit.prices:
            nominal = self._nominal
            groups = nominal.partition.groups[nominal.communicators[unit.name].partition]
            costs = [nominal.prices.costs[call][group.pattern] for group in groups]
            startup = np.array([cost.startup_seconds for cost in costs])[unit.group_class]
            unit.prices[call] = (startup, np.array([cost.transfer_seconds for cost in costs])[unit.group_class])
        startup, transfer = unit.prices[call]
        share = self.roles[unit.first].part.timeline.share[unit.rows, op]
        if (noise := self._variation.collective) is not None:
            factor = noise.of(op + unit.first * OPS, len(startup))
            return startup * factor, transfer * factor / share
        return startup, transfer / share

    def _start(self, role: Ranks, op: int, call: int) -> None:
        unit = role.units[call]
        assert unit is not None
        if unit.stream is not None:
            startup, transfer = self._price(unit, call, op)
            role.flows[op] = unit.stream.start(op, role.now[unit.members].max(axis=1), startup, transfer)
            return
        number = unit.arrived.get(role.number, 0)
        unit.arrived[role.number] = number + 1
        if number == len(unit.meetings):
            known = self._expected.get((unit.name, unit.roles), ())
            unit.meetings.append(Meeting.of(call, known[number] if known else None))
        meeting = unit.meetings[number]
        meeting.came[role.number] = (op, role.now)
        role.meetings[op] = (unit, meeting)
        if unit.name not in self._quiet:
            role.beside.append((unit, meeting))
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
        meeting.end = unit.last_end = meeting.begin + (startup + transfer / self._speed_beside(unit.name))
        meeting.first, meeting.latest = float(meeting.begin.min()), float(meeting.end.max())
        self.misjudged = self.misjudged or any(self.roles[r].let > meeting.first for r in unit.roles)
        for r in unit.roles:
            self._end(self.roles[r], unit, meeting.came[r][0], meeting.begin, meeting.end)

    def _end(self, role: Ranks, unit: Unit, op: int, begin: Floats, end: Floats) -> None:
        """Note when a collective ran."""
        own = unit.group[role.number]
        self.latest = max(self.latest, float(end.max()))
        role.keep(role.recorded.start, op, begin[own])
        role.keep(role.recorded.end, op, end[own])

    def _wait(self, role: Ranks, op: int, start: int) -> Walk:
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

    def _at_rest(self, role: Ranks, since: Floats) -> None:
        """All ranks of the role stood still at the same op, from `since` until now."""
        for unit in role.streams:
            assert unit.stream is not None
            if unit.stream.open:
                until = role.now[unit.members].min(axis=1)
                unit.stream.at_rest(since[unit.members].max(axis=1), until)
                unit.stream.passed(until)

    def times(self) -> Times:
        """Return when the collectives of several roles ran."""
        units = {(u.name, u.roles): u for role in self.roles for u in role.units if u is not None and u.stream is None}
        return {
            key: [None if m.begin is None or m.end is None else (m.begin, m.end) for m in unit.meetings]
            for key, unit in units.items()
        }

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
            last_end_seconds=max(self.latest, float(end.max())),
            exposed=shaped(self._exposed),
            peers=shaped(self._peers),
            host=host.reshape(sizes),
            compute_by_phase={phase: seconds / job.ranks for phase, seconds in self._phases.items()},
            communication_by_axis={axis: seconds / job.ranks for axis, seconds in self._communication.items()},
            transfer={},
            recorded=Recorded(*(np.zeros((0, 0)) for _ in range(3))),
        )
        return found, tuple(role.recorded for role in self.roles)
