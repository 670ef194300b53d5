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
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from twin.engine import lockstep
from twin.engine.links import Transfer
from twin.engine.program import START, WAIT, Ops, Program
from twin.engine.segment import Segment
from twin.engine.setting import Setting

Floats = NDArray[np.float64]
FEWEST_OPS = 4
"""Of a segment, on average: below that it is quicker to go op by op."""
NO_TRANSFER = Transfer(0.0, 0.0, (), 0.0)


@dataclass(frozen=True)
class Plan:
    """One rank class's program as segments and single ops, in order."""

    parts: list[tuple[int, int, Segment | None]]
    """First op, the one behind the last, and the segment; None: ops to go through one by one."""


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
        if setting.quiet:  # a segment's clocks take every op of a stream to slow compute
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
        single = _singles(program, self.outer)
        cuts = [0, *(np.flatnonzero(single[1:] != single[:-1]) + 1).tolist(), len(program)]
        parts = [
            (first, stop, None if single[first] else self._segment(rank_class, program, first, stop))
            for first, stop in pairwise(cuts)
            if first < stop
        ]
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
