"""Ranks and streams of the engine of several classes (`twin.engine.classes`): where each is, and what it waits for."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from twin.engine.known import Known
from twin.engine.links import ActiveFlow, Transfer
from twin.engine.plans import Plan
from twin.engine.program import START, Program
from twin.engine.rows import Row
from twin.engine.segment import Run, Segment
from twin.engine.streams import BUSY
from twin.engine.times import Times

NOTHING, OP, SEGMENT = 0, 1, 2
"""What a rank works at."""


class Pending:
    """One collective in a stream's queue."""

    __slots__ = ("arrived", "call", "over", "transfer", "waiting")

    def __init__(self, call: int, transfer: Transfer, first: tuple[Member, int]) -> None:
        self.call = call
        self.transfer = transfer
        self.arrived = [first]
        """Members with the places of the ops that start it."""
        self.waiting: list[Member] = []
        """Those whose compute stream stands still until it is over."""
        self.over = False


class Member:
    """A class of ranks: where it is in its program, and what it works at."""

    __slots__ = (
        "alone",
        "arrival",
        "calls",
        "collectives",
        "cuts",
        "disturbed",
        "end",
        "held",
        "host",
        "idle_at",
        "issued",
        "known",
        "number",
        "numbers",
        "op",
        "ops",
        "part",
        "pending",
        "plan",
        "prepared",
        "program",
        "quiet",
        "remaining",
        "run",
        "segment",
        "segments",
        "share",
        "shift",
        "shifts",
        "since",
        "slowness",
        "start",
        "stop",
        "stops",
        "under_way",
        "watched",
        "works_at",
    )

    def __init__(self, number: int, program: Program, slowness: float, plan: Plan) -> None:
        self.number = number
        self.program = program
        self.slowness = slowness
        self.cuts = plan.cuts
        self.segments = [*plan.segments, None]
        """By their numbers; the last is that of SINGLES."""
        self.stops, self.numbers, self.shifts = (
            each.data for each in (plan.cuts.stops, plan.cuts.numbers, plan.cuts.shifts)
        )
        """Of each part of the plan, as in its cuts: a view gives numbers of Python, quickly."""
        self.ops = [plan.cuts.singles]
        """Ops that it goes through one by one, in the order of their places in the columns."""
        self.start, self.end, self.arrival = (array("d", bytes(8 * len(plan.cuts.singles))) for _ in range(3))
        self.share = _undivided(np.asarray(program.code)[plan.cuts.singles])
        self.part = 0
        """The next part of the plan."""
        self.op = self.stop = 0
        """The next op, and where the ops of this part end."""
        self.shift = 0
        """Of its ops' places in the columns, against their numbers."""
        self.watched = -1
        """A part of the plan at which somebody wants to know of it."""
        self.held = False
        """Whether the host has held it up, or a segment had to be gone through op by op."""
        self.host = 0.0
        """When the host has issued everything so far."""
        self.issued = self.prepared = -1
        """The last op that the host has issued, and the last start that a CPU has worked for itself."""
        self.pending: dict[int, Pending] = {}
        """Collectives that are awaited later, by op."""
        self.calls: list[tuple[Stream, Transfer] | None] = []
        """Where each call runs, and what it takes; None for those of others."""
        self.disturbed = 0
        """Streams with something on them that segments would not go as they do alone beside."""
        self.under_way: list[Stream] = []
        """Streams on which a collective is running whose speed depends on what their members do."""
        self.collectives = self.quiet = 0
        """Collectives that are running, and those that slow no compute."""
        self.idle_at = 0
        """Op at which the compute stream stands still; BUSY if it works."""
        self.works_at = NOTHING
        self.plan = 0
        self.since = self.remaining = 0.0
        """Of an op: seconds left at a time, undisturbed."""
        self.segment: Segment | None = None
        self.run: Run | None = None
        """Of a segment, if something has run beside it."""
        self.alone = True
        """Of a segment: whether nothing has run beside it."""
        self.known = Known(plan)

    def walk(self) -> None:
        """Make place for the ops of a segment that is gone through op by op."""
        first, stop = self.op, self.stop
        self.held = True
        self.shift = len(self.start) - first
        self.ops.append(np.arange(first, stop))
        for column in (self.start, self.end, self.arrival):
            column.frombytes(bytes(8 * (stop - first)))
        self.share.extend(_undivided(np.asarray(self.program.code)[first:stop]))

    @property
    def place(self) -> int:
        """The place of its next op in the columns, as planned."""
        return self.op + self.shift

    @property
    def row(self) -> Row:
        """Return what it has done, when all is over."""
        times = Times(*map(np.asarray, (self.start, self.end, self.arrival, self.share)))
        ops = self.ops[0]
        if len(self.ops) > 1:
            ops = np.concatenate(self.ops)
            order = np.argsort(ops, kind="stable")
            ops, times = ops[order], times[order]
        return self.known.row(ops, times)


def _undivided(code: NDArray[np.int8]) -> array[float]:
    """Return the share of each op that has its links to itself: all of what a collective could have, none of others."""
    return array("d", (code == START).astype(np.float64).tobytes())


class Stream:
    """The queue of one communicator on one class of groups: in order, all members together."""

    __slots__ = (
        "arrived",
        "beside",
        "disturbs",
        "done",
        "finished",
        "flow",
        "members",
        "queue",
        "quiet",
        "running",
        "several_roles",
        "size",
        "steady",
    )

    def __init__(
        self, members: list[Member], beside: float, *, quiet: bool = False, shares_links: bool = False
    ) -> None:
        self.quiet = quiet
        """Whether it slows no compute and is not slowed by it."""
        self.members = members
        self.size = len(members)
        self.several_roles = any(member.program is not members[0].program for member in members)
        self.beside = 1.0 if quiet else beside
        self.steady = self.several_roles or self.beside == 1.0
        """Whether it does not matter for its speed what its members do."""
        self.disturbs = not self.steady or shares_links
        """Whether its members go op by op while something is on it."""
        self.queue: deque[Pending] = deque()
        self.arrived = dict.fromkeys((member.number for member in members), 0)
        self.done = 0
        self.running = False
        self.flow: ActiveFlow | None = None
        self.finished: Callable[[], None]
        """What is done when a flow has moved all its bytes."""

    def disturb(self, by: int) -> None:
        """Tell the members that something has come to the empty queue, or that it is empty again (-1)."""
        for member in self.members:
            member.disturbed += by

    def limit(self) -> float:
        """Return the speed of a transfer with links to itself."""
        if self.steady:
            return self.beside
        op = self.members[0].idle_at
        at_rest = op != BUSY and all(member.idle_at == op for member in self.members)
        return 1.0 if at_rest else self.beside
