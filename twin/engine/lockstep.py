"""One class of ranks: all do the same at the same time, and one loop over the program is enough.

The rules are those of the SimPy engine (`twin.engine.des`), of which this is the special case without
skew: a collective starts when the one rank comes to it and its stream is free, compute is slower
beside collectives and these slower beside compute, transfers share links. There are then at most
as many things under way as a rank has streams, and no queue of events is needed; and a micro-step
that begins as the one before began is that one, later. Equal to the SimPy engine to rounding, which
tests hold.
"""

from __future__ import annotations

from array import array
from collections import deque
from math import inf

import numpy as np

from twin.engine.links import Transfer
from twin.engine.program import COMPUTE, START, WAIT, Program, Repeated
from twin.engine.setting import Setting, Timeline
from twin.engine.sharing import Flow, assign_speeds


def applies(setting: Setting) -> bool:
    """Whether there is one class of ranks, with cores of its own and nothing random."""
    return (
        len(setting.slowness) == 1
        and not setting.cores
        and setting.compute_factor is None
        and setting.collective_factor is None
    )


def run(program: Program, setting: Setting) -> Timeline:
    """Simulate one step of a setting to which this applies, and return when everything happened."""
    device = _Device(program, setting)
    device.run()
    rows = (device.start, device.end, device.arrival, device.share)
    return Timeline.of(*(np.array(row)[None, :] for row in rows))


class _Running:
    """A collective under way: `until` its start-up is over, then until its transfer is."""

    __slots__ = ("allowed", "call", "op", "quiet", "remaining", "speed", "stream", "transferring", "until")

    def __init__(self, stream: str, call: int, op: int, until: float, *, quiet: bool) -> None:
        self.quiet = quiet
        self.stream = stream
        self.call = call
        self.op = op
        self.until = until
        self.transferring = False
        self.remaining = 0.0
        self.speed = 1.0
        self.allowed = 0.0
        """What the limit alone would have let through so far, in seconds of the transfer alone."""


class _Device:
    """The compute stream of the one rank, and its communicators' streams."""

    def __init__(self, program: Program, setting: Setting) -> None:
        self._program = program
        self._slowness = setting.slowness[0]
        self._beside = 1.0 / (1.0 + setting.collective_slowdown)
        self._stretch = 1.0 + setting.compute_slowdown
        self._capacity = setting.capacity
        self._transfers: list[Transfer] = [
            row[setting.group_class[program.calls[call][0]][0]] for call, row in enumerate(setting.transfers)
        ]
        self._shares_links = any(t.demands for t in self._transfers)
        self._speeds: dict[tuple[bool, tuple[int, ...]], list[float]] = {}
        self._now = 0.0
        self._host = 0.0
        self._held_by_host = False
        self._settled = 0.0
        self._busy = False
        self._running: list[_Running] = []
        self._quiet = setting.quiet
        self._loud = 0
        """Of what is running: how much slows compute."""
        self._waiting: dict[str, deque[tuple[int, int]]] = {c: deque() for c in setting.group_class}
        self._free = dict.fromkeys(setting.group_class, True)
        self.start, self.end, self.arrival, self.share = (array("d", bytes(8 * len(program))) for _ in range(4))

    def run(self) -> None:
        """Go through the program; what repeats itself in time too is copied."""
        done = 0
        for repeated in self._program.repeats:
            if repeated.first >= done:
                self._walk(done, repeated.first)
                done = repeated.first + repeated.length
                if self._walk_once(repeated):
                    done = repeated.first + repeated.length * repeated.count
        self._walk(done, len(self._program))
        self._stand_still(inf)

    def _walk_once(self, repeated: Repeated) -> bool:
        """Go through a stretch for the first time, and copy it for the other times if that is exact.

        With nothing under way when it begins and when it ends, and a host that was never waited for
        and is no less ahead at the end than at the beginning, the next time is the same, later.
        """
        alone, began, ahead = not self._running, self._now, self._now - self._host
        self._held_by_host = False
        self._walk(repeated.first, repeated.first + repeated.length)
        still_ahead = not self._held_by_host and self._now - self._host >= ahead
        if not (alone and not self._running and still_ahead):
            return False
        passed, times = self._now - began, np.arange(1, repeated.count)
        issued = sum(self._program.host_seconds[repeated.first : repeated.first + repeated.length])
        own = slice(repeated.first, repeated.first + repeated.length)
        others = slice(own.stop, repeated.first + repeated.length * repeated.count)
        for row in (self.start, self.end, self.arrival):
            view = np.frombuffer(row)
            view[others] = np.add.outer(passed * times, view[own]).ravel()
        share = np.frombuffer(self.share)
        share[others] = np.tile(share[own], len(times))
        self._now += passed * len(times)
        self._settled = self._now
        self._host += issued * len(times)
        return True

    def _walk(self, begin: int, stop: int) -> None:
        """Go through some of the program, op by op."""
        program, running, slowness = self._program, self._running, self._slowness
        start, end, arrival = self.start, self.end, self.arrival
        columns = (program.code, program.amount, program.target, program.host_seconds)
        host = self._host
        for i, (code, amount, target, issue) in enumerate(
            zip(*(column[begin:stop] for column in columns), strict=True), begin
        ):
            host += issue
            if host > self._now and code != WAIT:
                self._held_by_host = True
                self._stand_still(host)
            if code == COMPUTE:
                start[i] = arrival[i] = self._now
                if amount > 0.0:
                    self._compute(amount * slowness)
                end[i] = self._now
            elif code == START:
                if amount > 0.0:
                    self._compute(amount * slowness)
                arrival[i] = self._now
                if not running and i + 1 < stop and _waits_for(program, i + 1, i):
                    self._run_alone(target, i)
                else:
                    self._arrive(target, i)
            else:
                start[i] = arrival[i] = self._now
                if running and self._goes_on(target):
                    self._wait(target)
                elif end[target] > self._now:  # of one that ran alone, known at its start
                    self._now = end[target]
                end[i] = self._now
        self._host = host

    def _compute(self, work: float) -> None:
        """Work that takes so long undisturbed."""
        running = self._running
        if running:
            self._set_busy(busy=True)
        while running:
            stretch = self._stretch if self._loud else 1.0
            finish = self._now + work * stretch
            first = _first(running)
            if first.until > finish:
                self._now = finish
                return
            work = max(0.0, work - (first.until - self._now) / stretch)
            self._happen(first)
        self._now += work

    def _stand_still(self, until: float) -> None:
        """Let collectives go on alone for a while; for ever means until the last one has ended."""
        running = self._running
        if running:
            self._set_busy(busy=False)
        while running:
            first = _first(running)
            if first.until > until:
                break
            self._happen(first)
        if until < inf:
            self._now = until

    def _wait(self, op: int) -> None:
        """Let collectives go on alone until one has ended, which runs or waits for its stream."""
        self._set_busy(busy=False)
        while True:
            first = _first(self._running)
            over = first.op == op and first.transferring
            self._happen(first)
            if over:
                return

    def _goes_on(self, op: int) -> bool:
        """Whether a collective runs, or waits for its stream."""
        if any(one.op == op for one in self._running):
            return True
        stream = self._program.calls[self._program.target[op]][0]
        return any(op == queued for _, queued in self._waiting[stream])

    def _run_alone(self, call: int, op: int) -> None:
        """A collective with nothing beside it, which the next op waits for: its end is known."""
        transfer = self._transfers[call]
        self._busy = False
        speed = self._shared((call,))[0] if transfer.demands else 1.0
        self.start[op] = self._now
        self.end[op] = self._now + transfer.startup_seconds + transfer.transfer_seconds / speed
        self.share[op] = speed

    def _arrive(self, call: int, op: int) -> None:
        stream = self._program.calls[call][0]
        if self._free[stream]:
            self._begin(stream, call, op)
        else:
            self._waiting[stream].append((call, op))

    def _begin(self, stream: str, call: int, op: int) -> None:
        self._free[stream] = False
        self.start[op] = self._now
        until = self._now + self._transfers[call].startup_seconds
        quiet = stream in self._quiet
        self._loud += not quiet
        self._running.append(_Running(stream, call, op, until, quiet=quiet))

    def _happen(self, one: _Running) -> None:
        """A collective's start-up is over, or it has ended."""
        self._now = one.until
        if not one.transferring:
            self._settle()
            one.transferring = True
            one.remaining = self._transfers[one.call].transfer_seconds
            self._share_links()
            return
        self._settle()
        self.end[one.op] = self._now
        alone = self._transfers[one.call]
        self.share[one.op] = alone.transfer_seconds / one.allowed if alone.demands and one.allowed > 0.0 else 1.0
        self._running.remove(one)
        self._loud -= not one.quiet
        self._share_links()
        self._free[one.stream] = True
        if queue := self._waiting[one.stream]:
            self._begin(one.stream, *queue.popleft())

    def _set_busy(self, *, busy: bool) -> None:
        """Compute begins or ends: collectives get another speed limit."""
        if self._busy != busy:
            self._settle()
            self._busy = busy
            self._share_links()

    def _settle(self) -> None:
        """Let transfers move what they could since the last change."""
        passed = self._now - self._settled
        self._settled = self._now
        limit = self._beside if self._busy else 1.0
        for one in self._running:
            if one.transferring:
                one.remaining -= passed * one.speed
                one.allowed += passed * (1.0 if one.quiet else limit)

    def _share_links(self) -> None:
        """Give the transfers under way their speeds, and plan their ends."""
        moving = [one for one in self._running if one.transferring]
        if not moving:
            return
        if self._shares_links:
            speeds = self._shared(tuple(one.call for one in moving))
        else:
            speeds = [self._beside if self._busy and not one.quiet else 1.0 for one in moving]
        for one, speed in zip(moving, speeds, strict=True):
            one.speed = speed
            one.until = self._now + max(0.0, one.remaining) / speed

    def _shared(self, calls: tuple[int, ...]) -> list[float]:
        """Speeds of transfers that share links; the same ones meet again in every block."""
        found = self._speeds.get((self._busy, calls))
        if found is None:
            flows = [self._flow_of(call) for call in calls]
            assign_speeds(flows, self._capacity)
            found = self._speeds[self._busy, calls] = [flow.speed for flow in flows]
        return found

    def _flow_of(self, call: int) -> Flow:
        """Return a call's transfer with the speed that compute lets it have."""
        transfer, quiet = self._transfers[call], self._program.calls[call][0] in self._quiet
        return Flow(transfer.demands, transfer.peak_rate, self._beside if self._busy and not quiet else 1.0)


def _waits_for(program: Program, op: int, start: int) -> bool:
    return program.code[op] == WAIT and program.target[op] == start


def _first(running: list[_Running]) -> _Running:
    """The collective to which something happens first."""
    first = running[0]
    for one in running:
        if one.until < first.until:
            first = one
    return first
