"""Collectives in progress, for all groups of a communicator at once.

A collective that members compute beside is slow; while all its members stand still at the same op
it is not (see `twin.engine.des`). Ops are worked through in program order, so when a collective
starts nothing is known yet of what comes. It is given the end that it has if its members never
stand still; every time they do, the end moves forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from twin.description.grid import Axis
from twin.engine.cube import Along, Floats


@dataclass
class Flow:
    """One collective of every group; arrays over groups, or one number for all.

    It begins at `begin` and ends at `end`: later than `startup + slow_work` after, by what it has
    not yet gained from its members standing still.
    """

    op: int
    gate: Floats
    """When the last member arrived."""
    startup: Floats | float
    slow_work: Floats | float
    """Seconds of transfer beside compute."""
    begin: Floats
    end: Floats
    gained: Floats | float = 0.0
    over: bool = False
    """Whether every member is known to have come past its end."""
    taken: bool = False
    """Whether its members have waited for it."""

    def begins_after(self, previous: Floats | None) -> None:
        """Work out begin and end anew, once the end of the communicator's previous one has moved."""
        self.begin = self.gate if previous is None else np.maximum(self.gate, previous)
        self.end = self.begin + (self.startup + self.slow_work - self.gained)


@dataclass
class Stream:
    """The collectives of one communicator, in order: those nobody has waited for yet."""

    axis: Axis
    """That its time is booked under."""
    along: Along
    """Axes of an array over ranks along which its groups lie; none: every rank has one of its own."""
    beside: float
    """Speed of a transfer beside compute, relative to alone."""
    open: list[Flow] = field(default_factory=list)
    last_end: Floats | None = None
    """End of the last one that was waited for."""

    def start(self, op: int, gate: Floats, startup: Floats | float, transfer: Floats | float) -> Flow:
        """Put a collective into the queue; `transfer` is its time with nothing beside it."""
        previous = self.open[-1].end if self.open else self.last_end
        flow = Flow(op, gate, startup, transfer / self.beside, gate, gate)
        flow.begins_after(previous)
        self.open.append(flow)
        return flow

    def at_rest(self, since: Floats, until: Floats | float, last: int | None = None) -> None:
        """Let members stand still together from `since` until `until`, arrays over groups.

        Nothing happens to a group where `until` is not later. Only the first `last` open
        collectives are looked at.
        """
        if self.beside == 1.0:
            return
        previous, moved = self.last_end, False
        for flow in self.open[:last]:
            if not flow.over:
                if moved:
                    flow.begins_after(previous)
                first = np.maximum(since, flow.begin + flow.startup)
                alone = (flow.end - first) * self.beside
                gain = np.minimum(until - first, alone)
                np.maximum(gain, 0.0, out=gain)
                if gain.any():
                    gain *= 1.0 / self.beside - 1.0
                    flow.gained = flow.gained + gain
                    flow.end = flow.end - gain
                    moved = True
            previous = flow.end

    def take(self, op: int, since: Floats) -> Flow:
        """Take out the collective that all members wait for since `since`; its end is final."""
        index = next(i for i, flow in enumerate(self.open) if flow.op == op)
        self.at_rest(since, np.inf, index + 1)
        flow = self.open[index]
        for earlier in self.open[: index + 1]:
            earlier.over = True
        flow.taken = True
        previous = flow.end
        for later in self.open[index + 1 :]:  # they begin when this one has ended
            later.begins_after(previous)
            previous = later.end
        while self.open and self.open[0].taken:
            self.last_end = self.open.pop(0).end
        return flow

    def passed(self, until: Floats) -> None:
        """Note which collectives ended before `until`, when no member has come any further."""
        for flow in self.open:
            if flow.over:
                continue
            if not (flow.end <= until).all():
                break
            flow.over = True
