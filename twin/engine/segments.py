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
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from twin.engine import lockstep
from twin.engine.links import Transfer
from twin.engine.marks import axes_of
from twin.engine.plans import Cuts, Plan
from twin.engine.program import START, WAIT, Call, Program
from twin.engine.segment import Segment
from twin.engine.setting import Setting
from twin.engine.times import Floats, Ints

FEWEST_OPS = 4
"""Of a segment, on average: below that it is quicker to go op by op."""
NO_TRANSFER = Transfer(0.0, 0.0, (), 0.0)


_Key = tuple[object, ...]


@dataclass(frozen=True)
class _Traffic:
    """Starts and waits of a program: a fraction of its ops."""

    starts: Ints
    call: Ints
    """What each of them starts."""
    waits: Ints
    begun: Ints
    """The start that each of them waits for."""
    call_begun: Ints

    @classmethod
    def of(cls, program: Program) -> _Traffic:
        """Find them."""
        code, target = np.asarray(program.code), np.asarray(program.target)
        starts, waits = np.flatnonzero(code == START), np.flatnonzero(code == WAIT)
        begun = target[waits].astype(np.int64)
        return cls(starts, target[starts], waits, begun, target[begun])

    def singles(self, is_outer: NDArray[np.bool_]) -> Ints:
        """Return which ops begin or await such calls, ascending."""
        found = np.concatenate([self.starts[is_outer[self.call]], self.waits[is_outer[self.call_begun]]])
        found.sort(kind="stable")  # two that are in order: this sort merges them
        return found

    def going_on(self, is_outer: NDArray[np.bool_]) -> Ints:
        """Return the calls that are started in one segment and awaited in another, or not at all."""
        singles = self.singles(is_outer)
        apart = np.searchsorted(singles, self.begun, side="right") != np.searchsorted(singles, self.waits, side="right")
        awaited = np.zeros(len(self.starts), dtype=bool)
        awaited[np.searchsorted(self.starts, self.begun)] = True
        return np.union1d(self.call_begun[apart], self.call[~awaited])

    @property
    def awaited_later(self) -> list[int]:
        """Calls that are not always awaited as soon as they are started."""
        at_once = np.zeros(len(self.starts), dtype=bool)
        at_once[np.searchsorted(self.starts, self.begun[self.begun == self.waits - 1])] = True
        found: list[int] = np.unique(self.call[~at_once]).tolist()
        return found


@dataclass
class Segments:
    """Plans of all rank classes of a setting."""

    setting: Setting
    programs: Sequence[Program]
    outer: frozenset[str]
    """Communicators whose collectives are more than one class's business, or run on beside other segments."""
    disturbing: frozenset[str]
    """Those of them that share links with collectives in segments of their class: these go op by op meanwhile."""
    _cuts: list[Cuts]
    """Of each program."""
    _known: dict[tuple[_Key, int], Segment] = field(default_factory=dict)
    """By what decides how they go, and the number among those of a program that go the same way."""

    @classmethod
    def of(cls, programs: Sequence[Program], setting: Setting) -> Segments | None:
        """Find what may be planned; None if links are shared in other ways, or almost nothing may be."""
        if setting.cores or setting.compute_factor is not None or setting.collective_factor is not None:
            return None
        traffic = [_Traffic.of(program) for program in programs]
        if any(p.start_seconds for p in programs):
            return None  # starts take seconds of compute, as on a CPU
        calls = programs[0].calls
        links = _Links.of(calls, traffic, setting)
        outer = _outer(calls, traffic, setting, links)
        is_outer = _are(calls, outer)
        singles = [each.singles(is_outer) for each in traffic]
        if sum(map(len, programs)) < FEWEST_OPS * max(sum(map(len, singles)), 1):
            return None
        cuts = [Cuts.of(program, own) for program, own in zip(programs, singles, strict=True)]
        return cls(setting, programs, outer, links.disturbing(outer), cuts)

    def plan(self, rank_class: int) -> Plan:
        """Plan one class of ranks."""
        role = self.setting.role[rank_class] if self.setting.role else 0
        cuts = self._cuts[role]
        again = Counter[_Key]()
        segments = [self._segment(rank_class, self.programs[role], place, again) for place in cuts.distinct]
        return Plan(cuts, segments)

    def _segment(self, rank_class: int, program: Program, place: tuple[int, int], again: Counter[_Key]) -> Segment:
        """Return the segment of a stretch, which is that of another class's that goes the same way.

        Stretches of one program that differ have segments of their own, for their ops are not the same: `again` counts.
        """
        first, stop = place
        target, code = np.array(program.target[first:stop]), np.asarray(program.code[first:stop])
        which = np.asarray(program.ops.which[first:stop])
        hosts = np.asarray(program.hosts)[which]
        target[code == WAIT] -= first
        calls = sorted({*target[code == START].tolist()})
        key = (
            self.setting.slowness[rank_class],
            program.code[first:stop].tobytes(),
            np.asarray(program.amounts)[which].tobytes(),
            target.tobytes(),
            hosts.tobytes(),
            tuple([self._transfer(call, program.calls[call][0], rank_class) for call in calls]),
        )
        number = again[key]
        again[key] += 1
        if (key, number) not in self._known:
            part = Program(
                program.ops.part(first, stop),
                program.code[first:stop],
                program.amounts,
                array("i", target.tobytes()),
                array("d", bytes(8 * len(program.hosts))),
                program.calls,
            )
            self._known[key, number] = self._alone(rank_class, part, hosts)
        return self._known[key, number]

    def _alone(self, rank_class: int, part: Program, hosts: Floats) -> Segment:
        """Go through a stretch with nothing else under way, and a host that is ahead."""
        alone = lockstep.run(part, self._setting_of(rank_class, part)).rows[0].times
        code = np.array(part.code, dtype=np.int8)
        issued = np.cumsum(hosts)
        late = np.where(code == WAIT, -np.inf, issued - alone.start)
        # a collective is issued when the stream comes to it, not when it begins
        late = np.where(code == START, issued - alone.arrival, late)
        return Segment(
            alone,
            code,
            np.array(part.target),
            axes_of(part.calls),
            np.array([communicator not in self.setting.quiet for communicator, _, _ in part.calls], dtype=bool),
            1.0 + self.setting.compute_slowdown,
            float(issued[-1]),
            float(late.max(initial=-np.inf)),
        )

    def _transfer(self, call: int, communicator: str, rank_class: int) -> Transfer:
        """Return what a call takes a class of ranks, if it is its own business."""
        own = self.setting.group_class[communicator][rank_class]
        inner = communicator not in self.outer and own >= 0
        return self.setting.transfers[call][own] if inner else NO_TRANSFER

    def _setting_of(self, rank_class: int, program: Program) -> Setting:
        """Return a setting in which there is this class alone."""
        names = {communicator for communicator, _, _ in program.calls}
        return Setting(
            group_class={name: [0] for name in names},
            members={name: [(0,)] for name in names},
            transfers=[[self._transfer(i, name, rank_class)] for i, (name, _, _) in enumerate(program.calls)],
            capacity=self.setting.capacity,
            slowness=[self.setting.slowness[rank_class]],
            compute_slowdown=self.setting.compute_slowdown,
            collective_slowdown=self.setting.collective_slowdown,
            quiet=self.setting.quiet & names,
        )


def _are(calls: Sequence[Call], outer: Collection[str]) -> NDArray[np.bool_]:
    """Say of each call whether it is of one of these communicators."""
    return np.array([communicator in outer for communicator, _, _ in calls], dtype=bool)


def _outer(calls: Sequence[Call], traffic: Sequence[_Traffic], setting: Setting, links: _Links) -> frozenset[str]:
    """Communicators that no class has to itself."""
    outer = {name for name, classes in setting.members.items() if any(len(of_class) > 1 for of_class in classes)}
    outer |= links.shared
    before = -1
    while len(outer) != before:
        before = len(outer)
        for each in traffic:
            outer |= {calls[call][0] for call in each.going_on(_are(calls, outer)).tolist()}
    return frozenset(outer)


_User = tuple[str, int]
"""A communicator, and one of its classes of groups."""


@dataclass(frozen=True)
class _Links:
    """Who uses links together, and may do so at the same time.

    A class of ranks that waits for a collective as soon as it has started it does nothing else meanwhile: such a
    collective never runs beside one that the class has to itself.
    """

    users: Sequence[set[_User]]
    """Link by link."""
    classes: Mapping[_User, frozenset[int]]
    """Classes of ranks of each user."""
    at_once: frozenset[str]
    """Communicators whose collectives are awaited as soon as they are started."""

    @classmethod
    def of(cls, calls: Sequence[Call], traffic: Sequence[_Traffic], setting: Setting) -> _Links:
        """Read them from the prices of calls."""
        users: dict[int, set[_User]] = {}
        for call, (name, _, _) in enumerate(calls):
            for number, transfer in enumerate(setting.transfers[call]):
                for resource, _ in transfer.demands:
                    users.setdefault(resource, set()).add((name, number))
        different = {frozenset(on): on for on in users.values()}  # many links have the same users
        classes = {(name, number): frozenset(setting.members[name][number]) for on in different for name, number in on}
        later = {calls[call][0] for each in traffic for call in each.awaited_later}
        return cls(list(different.values()), classes, frozenset(name for name, _, _ in calls) - later)

    def _meet(self, one: _User, other: _User) -> bool:
        """Tell whether another user of a link may be at it while one is, if this is one class's business."""
        return not (other[0] in self.at_once and self.classes[one] <= self.classes[other])

    @property
    def shared(self) -> set[str]:
        """Communicators with a link that another class of ranks loads too, or one's own that is no class's alone."""
        found: set[str] = set()
        for on in self.users:
            for one in on:
                meeting = (self.classes[other] for other in on if self._meet(one, other))
                if len(self.classes[one].union(*meeting)) > 1:
                    found.add(one[0])
        return found

    def disturbing(self, outer: Collection[str]) -> frozenset[str]:
        """Return which of these, a class's own, have a link with another communicator of the class, and may meet it."""
        found: set[str] = set()
        for on in self.users:
            inner = [one for one in on if one[0] not in outer]
            found |= {other[0] for other in on if other[0] in outer and any(self._meet(one, other) for one in inner)}
        return frozenset(found)
