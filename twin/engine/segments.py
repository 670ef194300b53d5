"""Stretches of a program that are known beforehand: what one class of ranks does alone.

Between messages a stage computes, and talks within groups of its own class. Such a segment takes as long each time
as when it is alone, if the host is ahead and nothing else shares its links; but its compute is slower while a
message runs beside it. (What runs beside it must not in turn depend on whether it computes: a collective of its own
class would, where collectives are slower beside compute.) Its state then is the same as at an earlier time of the
segment alone: one clock goes slower where it computes with none of its own collectives under way, and nothing else
changes. So there are two clocks, `alone` and `beside`, and an op's times follow from which of them ran when.

This is exact, but only under conditions; `Segments.of` returns None where they do not hold.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from twin.engine import lockstep
from twin.engine.links import Transfer
from twin.engine.program import COMPUTE, START, WAIT, Ops, Program
from twin.engine.setting import Setting, Timeline

Floats = NDArray[np.float64]
FEWEST_OPS = 4
"""Of a segment, on average: below that it is quicker to go op by op."""
NO_TRANSFER = Transfer(0.0, 0.0, (), 0.0)


@dataclass(frozen=True)
class Segment:
    """What a stretch of ops does when nothing else happens: seconds from its begin."""

    alone: Timeline
    """(1, ops)."""
    code: NDArray[np.int8]
    stretch: float
    host_seconds: float
    """Of all its ops."""
    lead_seconds: float
    """How far ahead the host must be at its begin, so that no op waits for it."""

    @property
    def seconds(self) -> float:
        """How long it takes alone."""
        return self.alone.step_seconds

    @cached_property
    def clocks(self) -> tuple[list[float], list[float]]:
        """Both clocks wherever one changes its pace: (alone, beside)."""
        start, end = self.alone.start[0], self.alone.end[0]
        computes, starts = self.code == COMPUTE, self.code == START
        edges = np.unique(np.concatenate([[0.0, self.seconds], start, end]))
        low, high = edges[:-1], edges[1:]

        def covered(chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
            """Which pieces lie inside one of some intervals."""
            begun = np.searchsorted(np.sort(start[chosen]), low, side="right")
            ended = np.searchsorted(np.sort(end[chosen]), low, side="right")
            inside: NDArray[np.bool_] = begun > ended
            return inside

        slower = covered(computes) & ~covered(starts)
        beside = np.concatenate([[0.0], np.cumsum((high - low) * np.where(slower, self.stretch, 1.0))])
        return edges.tolist(), beside.tolist()


def _other(at: float, own: Sequence[float], other: Sequence[float]) -> float:
    """Read the other clock when one shows a time."""
    number = min(max(bisect_right(own, at) - 1, 0), len(own) - 2)
    width = own[number + 1] - own[number]
    if width <= 0.0:
        return other[number]
    return other[number] + (at - own[number]) / width * (other[number + 1] - other[number])


class Run:
    """A segment on its way."""

    __slots__ = ("_at", "_since", "_slow", "marks", "segment")

    def __init__(self, segment: Segment, now: float, *, slow: bool) -> None:
        self.segment = segment
        self._since = now
        self._at = 0.0
        """What the clock `alone` shows."""
        self._slow = slow
        self.marks: list[tuple[float, float, bool]] = [(now, 0.0, slow)]
        """When the pace changed: now, the clock `alone`, whether something ran beside from then on."""

    def left_seconds(self) -> float:
        """How long it takes from now on, if nothing changes."""
        if not self._slow:
            return self.segment.seconds - self._at
        alone, beside = self.segment.clocks
        return beside[-1] - _other(self._at, alone, beside)

    def change(self, now: float, *, slow: bool) -> None:
        """Note that something begins or ends beside it."""
        passed = now - self._since
        if self._slow:
            alone, beside = self.segment.clocks
            self._at = _other(_other(self._at, alone, beside) + passed, beside, alone)
        else:
            self._at += passed
        self._at = min(self._at, self.segment.seconds)
        self._since, self._slow = now, slow
        self.marks.append((now, self._at, slow))

    def times(self, alone: Floats) -> Floats:
        """Say when something happened that happens so many seconds after the begin if nothing else does."""
        if len(self.marks) == 1 and not self.marks[0][2]:
            return self.marks[0][0] + alone
        own, beside = self.segment.clocks
        found = np.empty_like(alone)
        bounds = [at for _, at, _ in self.marks[1:]]
        piece = np.searchsorted(bounds, alone, side="left") if bounds else np.zeros(len(alone), dtype=np.int64)
        for number, (now, at, slow) in enumerate(self.marks):
            inside = piece == number
            if slow:
                found[inside] = now + np.interp(alone[inside], own, beside) - _other(at, own, beside)
            else:
                found[inside] = now + (alone[inside] - at)
        return found


@dataclass(frozen=True)
class Plan:
    """One rank class's program as segments and single ops, in order."""

    parts: list[tuple[int, int, Segment | None]]
    """First op, number of ops, and the segment; None: a single op, or ops to go through one by one."""


@dataclass
class Segments:
    """Plans of all rank classes of a setting."""

    setting: Setting
    programs: Sequence[Program]
    outer: frozenset[str]
    """Communicators whose collectives are more than one class's business, or run on beside other segments."""
    _known: dict[tuple[int, bytes], Segment] = field(default_factory=dict)

    @classmethod
    def of(cls, programs: Sequence[Program], setting: Setting) -> Segments | None:
        """Find what may be planned; None if links are shared in other ways, or almost nothing may be."""
        if setting.cores or setting.compute_factor is not None or setting.collective_factor is not None:
            return None
        if any(amount > 0.0 for p in programs for amount in _starts(p)):
            return None
        outer = _outer(programs, setting)
        singles = sum(int(_singles(program, outer).sum()) for program in programs)
        if sum(map(len, programs)) < FEWEST_OPS * max(singles, 1):
            return None
        return cls(setting, programs, outer)

    def plan(self, rank_class: int) -> Plan:
        """Plan one class of ranks."""
        role = self.setting.role[rank_class] if self.setting.role else 0
        program = self.programs[role]
        singles = np.flatnonzero(_singles(program, self.outer))
        parts: list[tuple[int, int, Segment | None]] = []
        done = 0
        for single in [*singles.tolist(), len(program)]:
            if single > done:
                parts.append((done, single - done, self._segment(rank_class, program, done, single)))
            if single < len(program):
                parts.append((single, 1, None))
            done = single + 1
        return Plan(parts)

    def _segment(self, rank_class: int, program: Program, first: int, stop: int) -> Segment:
        key = (rank_class, program.ops.which[first:stop].tobytes())
        if key not in self._known:
            self._known[key] = self._alone(rank_class, program, first, stop)
        return self._known[key]

    def _alone(self, rank_class: int, program: Program, first: int, stop: int) -> Segment:
        """Go through a stretch with nothing else under way, and a host that is ahead."""
        code = program.code[first:stop]
        target = np.array(program.target[first:stop])
        target[np.asarray(code) == WAIT] -= first
        hosts = program.host_seconds[first:stop]
        part = Program(
            Ops(),
            code,
            program.amount[first:stop],
            array("i", target.astype(np.int32).tobytes()),
            array("d", bytes(8 * len(code))),
            program.calls,
        )
        alone = lockstep.run(part, self._setting_of(rank_class, program))
        issued = np.cumsum(np.asarray(hosts))
        late = np.where(np.asarray(code) == WAIT, -np.inf, issued - alone.start[0])
        # a collective is issued when the stream comes to it, not when it begins
        late = np.where(np.asarray(code) == START, issued - alone.arrival[0], late)
        return Segment(
            alone,
            np.array(code, dtype=np.int8),
            1.0 + self.setting.compute_slowdown,
            float(issued[-1]),
            float(late.max(initial=-np.inf)),
        )

    def _setting_of(self, rank_class: int, program: Program) -> Setting:
        """Return a setting in which there is this class alone."""
        transfers = []
        for call, (communicator, _, _) in enumerate(program.calls):
            own = self.setting.group_class[communicator][rank_class]
            inner = communicator not in self.outer and own >= 0
            transfers.append([self.setting.transfers[call][own] if inner else NO_TRANSFER])
        names = {communicator for communicator, _, _ in program.calls}
        return Setting(
            group_class={name: [0] for name in names},
            members={name: [(0,)] for name in names},
            transfers=transfers,
            capacity=self.setting.capacity,
            slowness=[self.setting.slowness[rank_class]],
            compute_slowdown=self.setting.compute_slowdown,
            collective_slowdown=self.setting.collective_slowdown,
        )


def _starts(program: Program) -> Floats:
    """Seconds of compute that starts take, as on a CPU."""
    found: Floats = np.asarray(program.amount)[np.asarray(program.code) == START]
    return found


def _singles(program: Program, outer: frozenset[str]) -> NDArray[np.bool_]:
    """Which ops begin or await collectives of these communicators."""
    code, target = np.asarray(program.code), np.asarray(program.target)
    is_outer = np.array([communicator in outer for communicator, _, _ in program.calls], dtype=bool)
    found = np.zeros(len(code), dtype=bool)
    starts, waits = np.flatnonzero(code == START), np.flatnonzero(code == WAIT)
    found[starts] = is_outer[target[starts]]
    found[waits] = found[target[waits]]
    return found


def _outer(programs: Sequence[Program], setting: Setting) -> frozenset[str]:
    """Communicators that no class has to itself."""
    outer = {
        name for name, classes in setting.members.items() if any(len(of_class) > 1 for of_class in classes)
    } | _sharing(programs[0].calls, setting)
    before = -1
    while len(outer) != before:
        before = len(outer)
        for program in programs:
            outer |= _going_on(program, frozenset(outer))
        for together in _on_one_link(programs[0].calls, setting):
            outer |= together if together & outer else set()
    return frozenset(outer)


def _sharing(calls: Sequence[tuple[str, str, float]], setting: Setting) -> set[str]:
    """Communicators with a link that another class of ranks loads too, or one's own that is no class's alone."""
    users: dict[int, set[tuple[str, int]]] = {}
    for call, (name, _, _) in enumerate(calls):
        for number, transfer in enumerate(setting.transfers[call]):
            for resource, _ in transfer.demands:
                users.setdefault(resource, set()).add((name, number))
    found: set[str] = set()
    for on in users.values():
        classes = {c for name, number in on for c in setting.members[name][number]}
        if len(classes) > 1:
            found |= {name for name, _ in on}
    return found


def _on_one_link(calls: Sequence[tuple[str, str, float]], setting: Setting) -> list[set[str]]:
    """Communicators whose collectives may share a link, link by link."""
    users: dict[int, set[str]] = {}
    for call, (name, _, _) in enumerate(calls):
        for transfer in setting.transfers[call]:
            for resource, _ in transfer.demands:
                users.setdefault(resource, set()).add(name)
    return list(users.values())


def _going_on(program: Program, outer: frozenset[str]) -> set[str]:
    """Communicators with a collective that is started in one segment and awaited in another, or not at all."""
    code, target = np.asarray(program.code), np.asarray(program.target)
    number = np.cumsum(_singles(program, outer))
    waits = np.flatnonzero(code == WAIT)
    begun = target[waits]
    crossing = set(begun[number[begun] != number[waits]].tolist())
    crossing |= set(np.flatnonzero(code == START).tolist()) - set(begun.tolist())
    return {program.calls[target[start]][0] for start in crossing} - outer


def write(rows: Mapping[str, array[float]], run: Run, first: int) -> None:
    """Write the times of a segment's ops into the rows of its rank class."""
    alone = run.segment.alone
    stop = first + len(run.segment.code)
    for name in ("start", "end", "arrival"):
        np.frombuffer(rows[name])[first:stop] = run.times(getattr(alone, name)[0])
    np.frombuffer(rows["share"])[first:stop] = alone.share[0]
