"""Simulate one step of a job: schedule, prices, symmetry and the SimPy engine together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twin.cost.power import follows_clock
from twin.description.job import Job
from twin.description.machine import Machine
from twin.description.problems import fail
from twin.engine import classes, des, lockstep
from twin.engine.garbage import uncollected
from twin.engine.layout import CORES, Relation
from twin.engine.links import Transfer
from twin.engine.power_cap import under_cap
from twin.engine.priced import Cast, Priced
from twin.engine.pricing import Prices
from twin.engine.program import Call, Program
from twin.engine.segments import Segments
from twin.engine.setting import Setting, Timeline
from twin.engine.simulation import Part, Simulation
from twin.engine.symmetry import GroupClass, Partition, fold, unfolded
from twin.engine.turns import turns_of
from twin.engine.variation import slowest_factor
from twin.schedule.kernels import Attention, Gemm, Kernel
from twin.schedule.ops import Schedule

Engine = Literal["folded", "des"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scales:
    """Factors on the times of each kind of kernel and of collectives, to see what uncertainty does."""

    gemm: float = 1.0
    attention: float = 1.0
    memory: float = 1.0
    collective: float = 1.0

    def of(self, kernel: Kernel) -> float:
        """Return the factor on a kernel's time."""
        if isinstance(kernel, Gemm):
            return self.gemm
        return self.attention if isinstance(kernel, Attention) else self.memory


EXACT = Scales()
MAX_EVENTS = 20_000_000
"""Simulated classes × ops; each takes 24 bytes and some 10 µs."""
MANY_CLASSES = 64
"""Whoever simulates many jobs passes this as `max_classes`."""


@dataclass(frozen=True)
class Differences:
    """How ranks differ at random, in rank order; only where every rank is simulated."""

    slowness: Floats
    """(ranks,): factor on compute time."""
    compute: Floats | None = None
    """(ops, ranks): further factors on the compute time of each rank's op of that number."""
    collective: Floats | None = None
    """(ops, ranks): factors on the time of the collective that such an op starts; its members have the same."""


@uncollected()
def simulate(
    job: Job,
    *,
    engine: Engine = "folded",
    schedule: Schedule | None = None,
    scales: Scales = EXACT,
    max_classes: int | None = None,
    differences: Differences | None = None,
) -> Simulation:
    """Simulate one training step; grid and micro-batch must be concrete.

    With `differences` (and engine `des`) no two ranks are alike.

    With `max_classes`, a job whose ranks fall into more classes than that is simulated without
    contention on global links, which is what makes classes many; the result says so.
    """
    work = Priced.of(job, schedule)
    cast, programs, calls, axes, prices = work.cast, work.programs, work.calls, work.groups, work.prices
    if scales != EXACT:
        programs = [program.stretched(scales.of) for program in programs]
    speed, typical = _slowness(job)
    if differences is not None:
        speed, typical = differences.slowness, 1.0
    role = cast.number_of_rank(job.ranks)
    left_out = False
    if engine == "folded":
        partition = fold(axes, prices.alike, prices.edges, speed, prices.capacity, role)
        if max_classes is not None and partition.rank_classes > max_classes:
            inside = prices.without_global_links()
            partition = fold(axes, prices.alike, inside.edges, speed, prices.capacity, role)
            left_out = True
    else:
        partition = unfolded(axes, prices.edges, job.ranks, prices.capacity)
    role_of_class = role[partition.representatives].tolist()
    _refuse_too_many(sum(len(programs[r]) for r in role_of_class), partition.rank_classes, engine)
    slowness = speed[partition.representatives]
    setting = _setting(job, calls, cast, partition, prices, slowness.tolist(), scales.collective, role_of_class)
    if differences is not None:
        setting = _differing(setting, differences)
    of_role = [np.flatnonzero(np.array(role_of_class) == number) for number in range(len(cast.roles))]

    def at(clock: float) -> Simulation:
        slowed = programs
        if clock < 1.0:
            slowed = [p.stretched(lambda k: 1.0 / clock if follows_clock(k) else 1.0) for p in programs]
        ran = zip(cast.roles, slowed, of_role, _run(slowed, setting, engine), strict=True)
        parts = tuple(Part(*one) for one in ran)
        return Simulation(job, cast.communicators, parts, partition, prices, slowness, typical, left_out, clock)

    return under_cap(job, programs, at)


def _run(programs: list[Program], setting: Setting, engine: Engine) -> list[Timeline]:
    """Let the engine that is quickest do what it applies to, and SimPy the rest; `des` is SimPy always."""
    if engine == "folded" and lockstep.applies(setting):
        return [lockstep.run(programs[0], setting)]
    if engine == "folded" and len(programs) > 1 and classes.applies(setting):
        return classes.run(programs, setting, Segments.of(programs, setting))
    return des.run(programs, setting)


def _refuse_too_many(events: int, classes: int, engine: Engine) -> None:
    if events > MAX_EVENTS:
        remedy = "use --engine folded, " if engine == "des" else "use "
        raise fail(
            "engine",
            f"{classes:,} classes of ranks with {events // classes:,} ops each are "
            f"{events:,} events, more than the {MAX_EVENTS:,} that fit into memory; {remedy}"
            "fewer ranks or fewer micro-steps",
        )


def _differing(setting: Setting, differences: Differences) -> Setting:
    """Add the factors of every op; classes are single ranks, in order."""
    compute, collective = differences.compute, differences.collective
    return replace(
        setting,
        compute_factor=None if compute is None else compute.tolist(),
        collective_factor=None if collective is None else collective.tolist(),
    )


def _slowness(job: Job) -> tuple[Floats, float]:
    """Return how much longer each rank computes than a device does on average, and those without a straggler.

    All wait for the slowest of many devices. A straggler is one of them, and not that one: it is so much slower than
    devices are on average.
    """
    typical = slowest_factor(job.machine, job.ranks) if job.slowest_device else 1.0
    slowness = np.full(job.ranks, typical)
    for straggler in job.stragglers:
        slowness[straggler.rank] = max(typical, straggler.slowdown)
    return slowness, typical


def _setting(
    job: Job,
    calls: Sequence[Call],
    cast: Cast,
    partition: Partition,
    prices: Prices,
    slowness: list[float],
    scale: float,
    role_of_class: list[int],
) -> Setting:
    relation = {c: cast.communicators[c].partition for c, _, _ in calls}
    transfers = [
        [
            transfer_of(prices, partition, number, relation[communicator], group, scale)
            for group in partition.groups[relation[communicator]]
        ]
        for number, (communicator, _, _) in enumerate(calls)
    ]
    return Setting(
        group_class={c: partition.group_class_of_rank_class[of] for c, of in relation.items()},
        members={c: [group.rank_classes for group in partition.groups[of]] for c, of in relation.items()},
        transfers=transfers,
        capacity=partition.capacity,
        slowness=slowness,
        compute_slowdown=float(job.compute_slowdown),
        collective_slowdown=float(job.machine.variation.collective_slowdown),
        core_use=_core_use(job.machine, partition),
        cores=frozenset(
            number
            for number, resource in enumerate(partition.resource_representatives)
            if prices.kind_of(resource) == "cores"
        ),
        turns=turns_of(job.machine, job.ranks, cast.communicators, len(cast.roles)),
        at_once=_at_once(job),
        quiet=prices.quiet,
        role=role_of_class,
    )


def _at_once(job: Job) -> int:
    """Return how many collectives of a communicator run at once: as many as threads of shared cores run them."""
    work = job.machine.libraries[job.library or job.machine.library].host_work
    return 1 if job.machine.cores is None or work is None or work.threads is None else int(work.threads)


def _core_use(machine: Machine, partition: Partition) -> list[tuple[tuple[int, float], ...]]:
    """Demands of each class of ranks on the cores they share, all ranks of the class at work."""
    if machine.cores is None:
        return [() for _ in range(partition.rank_classes)]
    return [
        tuple((use.resource_class, float(use.count)) for use in partition.groups[CORES][g].uses)
        for g in partition.group_class_of_rank_class[CORES]
    ]


def transfer_of(
    prices: Prices, partition: Partition, call: int, relation: Relation, group: GroupClass, scale: float = 1.0
) -> Transfer:
    """Price one call on one class of groups, with its demands on classes of resources."""
    cost = prices.costs[call][group.pattern]
    seconds = cost.transfer_seconds
    demands: dict[int, float] = {}
    for use in group.uses:
        moved = prices.label_bytes[relation][use.label].get(call, 0.0)
        if moved > 0.0 and seconds > 0.0 and math.isfinite(partition.capacity[use.resource_class]):
            rate = moved / seconds
            demands[use.resource_class] = demands.get(use.resource_class, 0.0) + rate * use.count
    return Transfer(
        scale * cost.startup_seconds,
        scale * seconds,
        tuple(demands.items()),
        cost.peak_bytes_per_second,
        cost.core_seconds / seconds if seconds > 0.0 else 0.0,
    )
