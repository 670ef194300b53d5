"""The SimPy engine: the reference for when everything happens.

Each rank (or class of ranks with the same future) is a process that walks through its program.

* Compute runs in order on the rank's compute stream, no sooner than the host has issued it.
  While one of the rank's collectives runs beside it, it is slower by the machine's
  interference factor.
* A collective runs at full speed while all of its members stand still at the same op of their
  program, else it is slower by another factor. (Members at different ops are almost never all
  idle at once, and this way what slows a collective follows from program order alone, which is
  what lets the all-ranks engine agree exactly.)
* What the device's units have no part in (copies to the host, its updates, drives) slows nothing and is not slowed.
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

from twin.description.problems import fail
from twin.engine.layout import NOWHERE
from twin.engine.links import Links, Transfer
from twin.engine.program import COMPUTE, START, Program
from twin.engine.setting import Setting, Timeline
from twin.engine.streams import MismatchError, Rank, Recorder, Stream, Timers, check_ended

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
            Stream(environment, links, [ranks[m] for m in of], recorder, beside, quiet=communicator in setting.quiet)
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
        walk = _walk(environment, rank, own, transfers, recorder, factors, noise)
        environment.process(walk)
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


def _walk(
    environment: simpy.Environment,
    rank: Rank,
    streams: dict[str, Stream],
    transfers: Sequence[Transfer | None],
    recorder: Recorder,
    factors: Sequence[float] | None,
    noise: Sequence[float] | None,
) -> Process:
    """One rank's program, op by op."""
    program = rank.program
    rows = {name: getattr(recorder, name)[rank.number] for name in ("start", "end", "arrival", "share")}
    call_stream = [streams.get(communicator) for communicator, _, _ in program.calls]
    ops = range(len(program))
    yield from _walk_ops(environment, rank, call_stream, transfers, rows, _State(), ops, factors, noise)
    rank.at = len(program)
    rank.stands_still(len(program))


@dataclass
class _State:
    """What a rank takes with it from op to op."""

    host: float = 0.0
    """When the host has issued everything so far."""
    done: dict[int, simpy.Event] = field(default_factory=dict)
    """Ends of collectives that are awaited later."""


def _walk_ops(
    environment: simpy.Environment,
    rank: Rank,
    call_stream: Sequence[Stream | None],
    transfers: Sequence[Transfer | None],
    rows: Mapping[str, array[float]],
    state: _State,
    ops: range,
    factors: Sequence[float] | None = None,
    noise: Sequence[float] | None = None,
) -> Process:
    """Go through some ops."""
    program, done = rank.program, state.done
    start, end, arrival = rows["start"], rows["end"], rows["arrival"]
    for i in ops:
        code, amount, target = program.code[i], program.amount[i], program.target[i]
        state.host += program.host_seconds[i]
        host = state.host
        rank.at = i
        slowness = rank.slowness if factors is None else rank.slowness * factors[i]
        if code == COMPUTE:
            if host > environment.now:
                rank.stands_still(i)
                yield environment.timeout(host - environment.now)
            rank.goes_on()
            start[i] = arrival[i] = environment.now
            if amount > 0.0:
                yield rank.compute(amount * slowness)
            end[i] = environment.now
        elif code == START:
            if host > environment.now:
                rank.stands_still(i)
                yield environment.timeout(host - environment.now)
            if amount > 0.0:
                rank.goes_on()
                yield rank.compute(amount * slowness)
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
