"""A job made ready for an engine: who does what, at which price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from twin.description.job import Job
from twin.description.problems import did_you_mean, fail
from twin.engine.compiler import compile_programs
from twin.engine.layout import CORES, Groups, Ints, Layout, Relation, each_alone, groups_of
from twin.engine.pricing import Prices, price
from twin.engine.program import Call, Program
from twin.schedule.communicator import Communicator, Role
from twin.schedule.ops import Schedule, Start
from twin.strategies import strategy_of


@dataclass(frozen=True)
class Cast:
    """Who does what: roles with their schedules, and the communicators that these name."""

    roles: tuple[Role, ...]
    schedules: tuple[Schedule, ...]
    communicators: Mapping[str, Communicator]

    @classmethod
    def of(cls, job: Job, schedule: Schedule | None = None) -> Cast:
        """Ask a job's strategy; or let every rank do what was recorded."""
        strategy = strategy_of(job)
        communicators = {c.name: c for c in strategy.communicators(job)}
        if schedule is not None:
            for op, _ in schedule.flat():
                if isinstance(op, Start) and op.communicator not in communicators:
                    raise fail("communicator", did_you_mean(op.communicator, communicators), op.communicator)
            return cls((Role.everyone(job.ranks),), (schedule,), communicators)
        roles = strategy.roles(job)
        return cls(roles, tuple(strategy.schedule(job, role) for role in roles), communicators)

    def second_in(self, role: Role) -> frozenset[str]:
        """Name the communicators of two in which the ranks of a role are the second member."""
        pairs = {name: c for name, c in self.communicators.items() if c.size == 2}
        return frozenset(name for name, c in pairs.items() if np.isin(c.members[:, 1], role.ranks).any())

    def number_of_rank(self, ranks: int) -> Ints:
        """Return the role of every rank, (ranks,)."""
        number = np.zeros(ranks, dtype=np.int64)
        for i, role in enumerate(self.roles):
            number[role.ranks] = i
        return number


@dataclass(frozen=True)
class Priced:
    """The programs of a job's roles with prices: all that an engine needs but the ranks' differences."""

    cast: Cast
    programs: list[Program]
    groups: Mapping[Relation, Groups]
    prices: Prices

    @property
    def calls(self) -> list[Call]:
        """Every collective that differs from others, of all roles."""
        return self.programs[0].calls

    @classmethod
    def of(cls, job: Job, schedule: Schedule | None = None) -> Priced:
        """Price a concrete job, or a recorded schedule on it."""
        machine, cast = job.machine, Cast.of(job, schedule)
        described = [(s, cast.second_in(r)) for r, s in zip(cast.roles, cast.schedules, strict=True)]
        programs = compile_programs(described, job)
        calls = programs[0].calls
        layout = Layout.of(job)
        used = {cast.communicators[c].partition: cast.communicators[c].members for c, _, _ in calls}
        groups = {relation: groups_of(members, relation, layout) for relation, members in used.items()}
        if machine.cores is not None:
            groups[CORES] = each_alone(job.ranks)
        library = machine.libraries[job.library or machine.library]
        prices = price(machine, library, calls, cast.communicators, groups, layout, job.degraded)
        return cls(cast, programs, groups, prices)
