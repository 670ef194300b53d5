"""The SimPy engine: the reference for when everything happens.

Each rank (or class of ranks with the same future) is a process that walks through its program.

* Compute runs in order on the rank's compute stream, no sooner than the host has issued it.
  While one of the rank's collectives runs beside it, it is slower by the machine's
  interference factor.
* A collective runs at full speed while all of its members stand still at the same op of their
  program, else it is slower by another factor. (Members at different ops are almost never all
  idle at once, and this way what slows a collective follows from program order alone, which is
  what lets the all-ranks engine agree exactly.)
* What the device's units have no part in, or few of them (copies to the host, its updates, drives; messages between
  nodes where the library says so) slows nothing and is not slowed.
* Where ranks share cores and take turns on them, the last member comes later to what is to run beside compute
  (`twin.engine.turns`).
* Members that run different programs (a message between pipeline stages) are never at the same op: what
  joins them is taken to run beside compute.
* A collective starts when its last member has arrived and the communicator's previous
  collective is done (or all but one of those before it, where threads of shared cores run
  two). After its start-up it is a flow that shares links with all others.
* Time is in seconds from the start of the step. Same job, same result, to the bit.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import simpy

from twin.description.problems import fail
from twin.engine.layout import NOWHERE
from twin.engine.links import Links, Transfer
from twin.engine.program import COMPUTE, START, WAIT, Program
from twin.engine.setting import Setting, Timeline
from twin.engine.streams import MismatchError, Rank, Recorder, Stream, Timers, check_ended, listen
from twin.engine.turns import Turns, work_until_wait

Process = Generator[simpy.Event, None, None]


def run(programs: Sequence[Program], setting: Setting) -> list[Timeline]:
    """Simulate one step and return when everything happened, by role: rank classes in ascending order.

    Raises DescriptionError if ranks wait for each other for ever, or do not mean the same op.
    """
    role = setting.role or [0] * len(setting.slowness)
    recorder = Recorder(*([array("d", bytes(8 * len(programs[r]))) for r in role] for _ in range(4)))
    environment = simpy.Environment()
    links = Links(Timers(environment), setting.capacity, setting.cores)
    beside = 1.0 / (1.0 + setting.collective_slowdown)
    core_use = setting.core_use or [()] * len(setting.slowness)
    stretch = 1.0 + setting.compute_slowdown
    ranks = [
        Rank(environment, links, c, programs[role[c]], slow, stretch, use)
        for c, (slow, use) in enumerate(zip(setting.slowness, core_use, strict=True))
    ]
    streams = {
        communicator: [
            Stream(
                environment,
                links,
                [ranks[m] for m in of],
                recorder,
                beside,
                quiet=communicator in setting.quiet,
                at_once=setting.at_once,
            )
            for of in members
        ]
        for communicator, members in setting.members.items()
    }
    for rank in ranks:
        indices = {c: of[rank.number] for c, of in setting.group_class.items() if of[rank.number] != NOWHERE}
        own = {c: streams[c][index] for c, index in indices.items()}
        transfers = [
            setting.transfers[i][indices[communicator]] if communicator in indices else None
            for i, (communicator, _, _) in enumerate(rank.program.calls)
        ]
        factors, noise = (_factors_of(rank.number, of) for of in (setting.compute_factor, setting.collective_factor))
        walk = _Walk(environment, rank, own, transfers, recorder, setting.turns, factors, noise)
        environment.process(walk.run())
    try:
        environment.run()
    except MismatchError as error:
        raise fail("schedule", str(error)) from None
    check_ended((rank.number, rank.program, rank.at) for rank in ranks if rank.at < len(rank.program))
    recorded = (recorder.start, recorder.end, recorder.arrival, recorder.share)
    of_role = [[c for c, r in enumerate(role) if r == number] for number in range(len(programs))]
    return [Timeline.of(*(np.array([rows[c] for c in classes]) for rows in recorded)) for classes in of_role]


def _factors_of(rank: int, factors: list[list[float]] | None) -> list[float] | None:
    """Return one rank's factors, by op."""
    return None if factors is None else [row[rank] for row in factors]


@dataclass
class _Walk:
    """One rank's way through its program, op by op."""

    environment: simpy.Environment
    rank: Rank
    streams: Mapping[str, Stream]
    transfers: Sequence[Transfer | None]
    """Of each call; None: the rank takes no part."""
    recorder: Recorder
    turns: Turns
    factors: Sequence[float] | None
    noise: Sequence[float] | None
    done: dict[int, simpy.Event] = field(default_factory=dict)
    """Ends of collectives that are awaited later."""
    worked: float = 0.0
    """Seconds of work since the rank last stood still."""
    arrived: float = 0.0
    """When it last came to a collective: they are started in order."""

    def run(self) -> Process:
        """Go through all ops."""
        environment, rank, program = self.environment, self.rank, self.rank.program
        start, end, arrival = (self._row(name) for name in ("start", "end", "arrival"))
        rest = work_until_wait(program) if self.turns.seconds else None
        host = 0.0  # when it has issued everything so far
        for i, code in enumerate(program.code):
            amount, target = program.amount[i], program.target[i]
            host += program.host_seconds[i]
            rank.at = i
            slowness = rank.slowness if self.factors is None else rank.slowness * self.factors[i]
            if code != WAIT and host > environment.now:
                rank.stands_still(i)
                yield environment.timeout(host - environment.now)
            if code == COMPUTE:
                rank.goes_on()
                start[i] = arrival[i] = environment.now
                if amount > 0.0:
                    yield rank.compute(amount * slowness)
                self.worked += amount * slowness
                end[i] = environment.now
            elif code == START:
                if amount > 0.0:
                    rank.goes_on()
                    yield rank.compute(amount * slowness)
                self.worked += amount * slowness
                left = 0.0 if rest is None else float(rest[i]) * slowness
                self._start(i, target, left)
            else:
                start[i] = arrival[i] = environment.now
                event = self.done.pop(target)
                if not event.processed:
                    rank.stands_still(i)
                    yield event
                    self.worked = 0.0
                end[i] = environment.now
        rank.at = len(program)
        rank.stands_still(len(program))

    def _row(self, name: str) -> array[float]:
        row: array[float] = getattr(self.recorder, name)[self.rank.number]
        return row

    def _start(self, op: int, call: int, left: float) -> None:
        """Come to a collective: now, or when the last member of the group has had its turn."""
        environment, communicator = self.environment, self.rank.program.calls[call][0]
        late = self.turns.late(communicator, self.worked, left) if left else 0.0
        self.arrived = max(environment.now + late, self.arrived)
        if self.arrived <= environment.now:
            self.done[op] = self._arrive(op, call)
            return
        self.done[op] = done = environment.event()

        def end(_event: simpy.Event) -> None:
            done.succeed()

        def come(_event: simpy.Event) -> None:
            listen(self._arrive(op, call), end)

        listen(environment.timeout(self.arrived - environment.now), come)

    def _arrive(self, op: int, call: int) -> simpy.Event:
        """Be there; returns the collective's end."""
        self._row("arrival")[op] = self.environment.now
        stream, transfer = self.streams.get(self.rank.program.calls[call][0]), self.transfers[call]
        assert stream is not None
        assert transfer is not None
        if self.noise is not None:
            transfer = transfer.longer(self.noise[op])
        return stream.arrive(self.rank, op, call, transfer)
