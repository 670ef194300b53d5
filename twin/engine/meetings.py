"""Ranks of a role, and their meetings with ranks of others, as the all-ranks engine sees them (`every_role`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from twin.engine.cube import Floats
from twin.engine.flows import Flow, Stream
from twin.engine.layout import NOWHERE, Ints
from twin.engine.ranks import Recorded
from twin.engine.simulation import Part, Simulation
from twin.schedule.ops import axis_of

Signal = float | None
"""Why a role does not go on: it waits for another one, or hesitates with an op that would be done then."""


@dataclass
class Meeting:
    """One collective of ranks of several roles; times are of groups, None until all have come."""

    call: int
    expected: tuple[Floats, Floats] | None = None
    """When it began and ended the last time that the step was gone through."""
    came: dict[int, tuple[int, Floats]] = field(default_factory=dict)
    """Of each role: its op, and when its ranks came."""
    gate: Floats | None = None
    begin: Floats | None = None
    end: Floats | None = None
    first: float = 0.0
    latest: float = 0.0
    """The first begin and the last end of any group; of the last time until all have come."""

    @classmethod
    def of(cls, call: int, expected: tuple[Floats, Floats] | None) -> Meeting:
        """Make one that nobody has come to."""
        if expected is None:
            return cls(call)
        return cls(call, expected, first=float(expected[0].min()), latest=float(expected[1].max()))


@dataclass
class Unit:
    """The groups of a communicator whose members are of the same roles."""

    name: str
    roles: tuple[int, ...]
    members: Ints
    """(groups, size): places among the ranks of the roles, these one after another."""
    group: dict[int, Ints]
    """Of each role: the group of each of its ranks."""
    group_class: Ints
    first: int
    """The role of the groups' first members."""
    rows: Ints
    """Row of each group's first member in the nominal timeline of that role."""
    stream: Stream | None
    """Of one role's groups."""
    meetings: list[Meeting] = field(default_factory=list)
    arrived: dict[int, int] = field(default_factory=dict)
    last_end: Floats | None = None
    prices: dict[int, tuple[Floats, Floats]] = field(default_factory=dict)
    """Of calls: seconds to start up and to transfer of each group, alone."""

    @property
    def axis(self) -> str:
        """What its time is booked under."""
        return axis_of(self.name)


class Ranks:
    """The ranks of one role: `now` is when each one's compute stream is free."""

    def __init__(self, number: int, part: Part, slowness: Floats, record: Sequence[int]) -> None:
        self.number, self.part, self.slowness = number, part, slowness[part.role.ranks]
        self.now = np.zeros(len(part.role.ranks))
        self.units: list[Unit | None] = []
        self.flows: dict[int, Flow] = {}
        self.meetings: dict[int, tuple[Unit, Meeting]] = {}
        """By op: those that are awaited later."""
        self.beside: list[tuple[Unit, Meeting]] = []
        """Those that may run beside what comes."""
        self.streams: list[Unit] = []
        self.op = 0
        self.let = 0.0
        """Until when ranks have gone on although something might have begun."""
        self.signal: Signal = None
        self.host = np.zeros_like(self.now)
        chosen = np.flatnonzero(np.isin(part.role.ranks, np.array(record, dtype=np.int64)))
        self.chosen = chosen
        self.recorded = Recorded(*(np.zeros((len(chosen), len(part.program))) for _ in range(3)))

    def keep(self, into: Floats, op: int, values: Floats | None = None) -> None:
        """Keep times of the ranks that are recorded."""
        if len(self.chosen):
            into[:, op] = (self.now if values is None else values)[self.chosen]


def units_of(name: str, nominal: Simulation, roles: Sequence[Ranks], beside: float) -> list[Unit]:
    """Divide a communicator's groups by the roles of their members; `beside` is a transfer's speed beside compute."""
    communicator, partition = nominal.communicators[name], nominal.partition
    of_class = np.array(partition.group_class_of_rank_class[communicator.partition])
    role_of, place = (np.zeros(nominal.job.ranks, dtype=np.int64) for _ in range(2))
    for role in roles:
        ranks = role.part.role.ranks
        role_of[ranks], place[ranks] = role.number, np.arange(len(ranks))
    found, keys = [], np.sort(role_of[communicator.members], axis=1)
    for key in np.unique(keys, axis=0):
        own = communicator.members[(keys == key).all(axis=1)]
        between = tuple(dict.fromkeys(key.tolist()))
        ends = np.cumsum([len(roles[number].now) for number in between])
        begin = np.zeros(len(roles), dtype=np.int64)
        begin[list(between[1:])] = ends[:-1]
        at = begin[role_of[own]] + place[own]
        group_of = np.full(int(ends[-1]), NOWHERE, dtype=np.int64)
        group_of[at.ravel()] = np.repeat(np.arange(len(own)), own.shape[1])
        group = dict(zip(between, np.split(group_of, ends[:-1]), strict=True))
        first, classes = int(role_of[own[0, 0]]), partition.rank_class[own[:, 0]]
        rows = np.searchsorted(roles[first].part.classes, classes)
        stream = Stream(axis_of(name), (0,), beside) if len(between) == 1 else None
        found.append(Unit(name, between, at, group, of_class[classes], first, rows, stream))
    return found
