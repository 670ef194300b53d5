"""The all-ranks engine: one op at a time, for all ranks at once.

For what folding cannot do: every rank different, through device speed, jitter or noise. Time is
an array over the whole grid. Compute adds to it, a collective takes a maximum along axes, a wait
takes the later of two. Interference is exact: while a rank's collectives run its compute is slower,
and a collective is slower unless its members stand still (`twin.engine.flows`).

A rank's own streams (copies to its host, updates there, drives) are groups of one, which slow nothing
and are not slowed.

What links, and hosts' memory and drives, let a collective have is a number per collective
(`Price.share`), taken from the folded simulation of the same step without random differences. Where
these bring apart groups of one axis that share a link, it is followed who is at work
(`twin.engine.bundles`); other sharing is taken not to change. So without differences both engines
agree to rounding in every case, and with them wherever no link is shared; docs/howto/every-rank.md
has the errors elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from twin.description.grid import Axis
from twin.engine.bundles import Bundles
from twin.engine.coverage import stretched
from twin.engine.cube import Along, Cube, Floats
from twin.engine.flows import Stream
from twin.engine.program import COMPUTE, START, Program
from twin.engine.variation import Factors
from twin.schedule.ops import OWN_STREAMS, axis_of


@dataclass(frozen=True)
class Price:
    """One collective: seconds to start up and to transfer, one number or an array over groups.

    The transfer is as links let it be, beside no compute.
    """

    startup_seconds: Floats | float
    transfer_seconds: Floats | float
    share: Floats | float = 1.0
    """What links let it have of its speed, all groups in step."""


@dataclass(frozen=True)
class Variation:
    """How ranks differ: slowness by rank, random factors by op."""

    slowness: Floats
    """of the mesh."""
    compute: Factors | None = None
    collective: Factors | None = None


@dataclass(frozen=True)
class Interference:
    """Relative lengthening of compute beside collectives, and of transfers beside compute."""

    compute: float
    collective: float
    quiet: frozenset[str] = frozenset()
    """Communicators that have no part in either."""

    def speed_beside(self, communicator: str) -> float:
        """Return the speed of a communicator's transfers beside compute, relative to alone."""
        return 1.0 if communicator in self.quiet else 1.0 / (1.0 + self.collective)


@dataclass(frozen=True)
class Recorded:
    """Times of chosen ranks, seconds, arrays (ranks, ops), as `twin.engine.des.Timeline` has them."""

    start: Floats
    end: Floats
    arrival: Floats


@dataclass(frozen=True)
class Outcome:
    """One step of all ranks; arrays over ranks have the shape of the mesh, in seconds."""

    end: Floats
    """When each rank has done its last op."""
    last_end_seconds: float
    exposed: dict[Axis, Floats]
    """Waiting for a collective that all members had come to; by axis, and by name of what is a rank's own."""
    peers: dict[Axis, Floats]
    """Waiting for a collective's last member to come."""
    host: Floats
    """Waiting for the host to issue, or issuing collectives oneself."""
    compute_by_phase: dict[str, float]
    """Mean over ranks."""
    communication_by_axis: dict[Axis, float]
    """Seconds of collectives, mean over ranks."""
    transfer: dict[Axis, Floats]
    """Seconds of collectives from begin to end, one value per group."""
    recorded: Recorded

    @property
    def compute(self) -> Floats:
        """Seconds in which each rank computes."""
        waiting = sum([*self.exposed.values(), *self.peers.values()], start=self.host)
        return self.end - waiting


def run(
    program: Program,
    cube: Cube,
    along: Mapping[str, Along],
    price: Callable[[int], Price],
    variation: Variation,
    interference: Interference,
    bundles: Mapping[str, Bundles],
    record: Sequence[int] = (),
) -> Outcome:
    """Simulate one step.

    `along` says of each communicator along which axes its groups lie; `price(op)` is the price of the collective that
    an op starts; `bundles` are groups that share links, for communicators that have such. Events of the ranks in
    `record` are kept.
    """
    return _Run(program, cube, along, price, variation, interference, bundles, record).outcome()


class _Run:
    """The state of a run; `now` is when each rank's compute stream is free."""

    def __init__(
        self,
        program: Program,
        cube: Cube,
        along: Mapping[str, Along],
        price: Callable[[int], Price],
        variation: Variation,
        interference: Interference,
        bundles: Mapping[str, Bundles],
        record: Sequence[int],
    ) -> None:
        self._cube, self._price, self._variation = cube, price, variation
        self._bundles = bundles
        self._stretch = 1.0 + interference.compute
        communicators = dict.fromkeys(c for c, _, _ in program.calls)
        self._streams = {c: Stream(axis_of(c), along[c], interference.speed_beside(c)) for c in communicators}
        self._loud = [stream for name, stream in self._streams.items() if name not in interference.quiet]
        booked = dict.fromkeys([*cube.axes, *(stream.axis for stream in self._streams.values())])
        self.now = cube.zeros()
        self._floor = 0.0
        """Nobody's time is earlier."""
        self._chosen = np.array(record, dtype=np.int64)
        self._at = np.unravel_index(self._chosen, cube.sizes)
        self._record = Recorded(*(np.zeros((len(program), len(record))) for _ in range(3)))
        self._exposed = {axis: cube.zeros() for axis in booked}
        self._peers = {axis: cube.zeros() for axis in booked}
        self._host = cube.zeros()
        self._transfer: dict[Axis, Floats] = {}
        self._phases: dict[str, float] = {}
        self._phase, self._since = "", 0.0
        self._latest = 0.0
        self._run(program)

    def _run(self, program: Program) -> None:
        host = 0.0
        for op, (code, amount, target, issue) in enumerate(
            zip(program.code, program.amount, program.target, program.host_seconds, strict=True)
        ):
            host += issue
            if code == COMPUTE:
                self._compute(op, amount, host, program.ops[op][0].phase)
            elif code == START:
                self._start(op, amount, host, program.calls[target][0])
            else:
                communicator = program.calls[program.target[target]][0]
                self._wait(op, target, self._streams[communicator])
        self._note_phase("")
        self._close()

    def _compute(self, op: int, amount: float, host: float, phase: str) -> None:
        self._wait_for_host(host)
        if phase != self._phase:
            self._note_phase(phase)
        self._keep(self._record.start, op)
        self._keep(self._record.arrival, op)
        self._work(op, amount)
        self._keep(self._record.end, op)

    def _start(self, op: int, amount: float, host: float, name: str) -> None:
        stream = self._streams[name]
        self._wait_for_host(host)
        if amount:  # a CPU that issues what it runs itself
            self._note_phase("")
            before = self.now
            self._work(op, amount)
            self._host += self.now - before
        self._keep(self._record.arrival, op)
        price = self._price(op)
        gate = self.now.max(axis=stream.along, keepdims=True)
        startup, transfer = price.startup_seconds, price.transfer_seconds
        if name not in OWN_STREAMS and (noise := self._variation.collective) is not None:
            factor = self._cube.from_memory(noise.of(op, gate.size), stream.along)
            startup, transfer = startup * factor, transfer * factor
        flow = stream.start(op, gate, startup, transfer)
        if (bundles := self._bundles.get(name)) is not None:
            begin = flow.begin + startup
            flow.slow_work = bundles.longer(self._cube, begin, flow.slow_work, price.share)
            flow.end = begin + flow.slow_work

    def _work(self, op: int, amount: float) -> None:
        """Compute so many seconds' worth, as seen at nominal speed."""
        if amount == 0.0:
            return
        work = amount * self._variation.slowness
        if (jitter := self._variation.compute) is not None:
            work *= self._cube.from_memory(jitter.of(op, self._cube.ranks))
        running = [flow for stream in self._loud for flow in stream.open if not flow.over]
        if self._stretch == 1.0 or not running:
            self.now = self.now + work
        else:
            self.now = stretched(self.now, work, self._stretch, [(f.begin, f.end) for f in running])

    def _wait(self, op: int, start: int, stream: Stream) -> None:
        before = self.now
        self._note_phase("")
        self._keep(self._record.start, op)
        self._keep(self._record.arrival, op)
        flow = stream.take(start, before.max(axis=stream.along, keepdims=True))
        come = np.maximum(before, flow.gate)
        self.now = np.maximum(before, flow.end)
        self._exposed[stream.axis] += self.now - come
        self._peers[stream.axis] += come - before
        took = flow.end - flow.begin
        known = self._transfer.get(stream.axis)
        self._transfer[stream.axis] = took if known is None else known + took
        self._latest = max(self._latest, float(flow.end.max()))
        self._at_rest(before)
        self._keep(self._record.end, op)
        self._keep(self._record.start, start, flow.begin)
        self._keep(self._record.end, start, flow.end)

    def _wait_for_host(self, host: float) -> None:
        """Kernels run no sooner than the host has issued them."""
        if host <= self._floor:
            return
        self._floor = float(self.now.min())
        if host <= self._floor:
            return
        self._note_phase("")
        before = self.now
        self.now = np.maximum(before, host)
        self._host += self.now - before
        self._floor = host
        self._at_rest(before)

    def _at_rest(self, since: Floats) -> None:
        """Every rank stood still at the same op, from `since` until now."""
        found: dict[tuple[int, ...], tuple[Floats, Floats]] = {}
        for stream in self._streams.values():
            if all(flow.over for flow in stream.open):
                continue
            axis = stream.along
            if axis not in found:
                found[axis] = (since.max(axis=axis, keepdims=True), self.now.min(axis=axis, keepdims=True))
            begin, end = found[axis]
            stream.at_rest(begin, end)
            stream.passed(end)

    def _note_phase(self, phase: str) -> None:
        """Book the compute since the last call on the phase that was under way."""
        mean = float(np.add.reduce(self.now, axis=None)) / self.now.size
        if self._phase:
            self._phases[self._phase] = self._phases.get(self._phase, 0.0) + mean - self._since
        self._phase, self._since = phase, mean

    def _keep(self, into: Floats, op: int, values: Floats | None = None) -> None:
        if len(self._chosen):
            source = self.now if values is None else np.broadcast_to(values, self._cube.sizes)
            into[op] = source[self._at]

    def _close(self) -> None:
        """Let collectives that nobody waits for come to their end."""
        for stream in self._streams.values():
            stream.at_rest(self.now.max(axis=stream.along, keepdims=True), np.inf)
            for flow in stream.open:
                self._latest = max(self._latest, float(flow.end.max()))
                self._keep(self._record.start, flow.op, flow.begin)
                self._keep(self._record.end, flow.op, flow.end)

    def outcome(self) -> Outcome:
        """Everything that is wanted of the run."""
        recorded = self._record
        return Outcome(
            end=self.now,
            last_end_seconds=max(self._latest, float(self.now.max())),
            exposed=self._exposed,
            peers=self._peers,
            host=self._host,
            compute_by_phase=self._phases,
            communication_by_axis={
                axis: float(self._transfer[axis].mean()) if axis in self._transfer else 0.0 for axis in self._exposed
            },
            transfer=self._transfer,
            recorded=Recorded(recorded.start.T, recorded.end.T, recorded.arrival.T),
        )
