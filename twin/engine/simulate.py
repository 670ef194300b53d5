"""Simulate one step of a job: schedule, prices, symmetry and the SimPy engine together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twin.description.grid import Axis
from twin.description.job import Job
from twin.description.machine import Machine
from twin.description.problems import fail
from twin.engine import des, lockstep
from twin.engine.layout import AxisGroups, Layout, Relation, each_alone, groups_of
from twin.engine.links import Transfer
from twin.engine.pricing import Prices, price
from twin.engine.program import START, Program, compile_program
from twin.engine.symmetry import GroupClass, Partition, fold, unfolded
from twin.engine.variation import slowest_factor
from twin.schedule.ops import COMMUNICATOR_AXIS, Communicator, Schedule
from twin.schedule.step import generate

Engine = Literal["folded", "des"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scales:
    """Factors on all compute and all collective times, to see what uncertainty does."""

    compute: float = 1.0
    collective: float = 1.0


EXACT = Scales()
MOST_EVENTS = 20_000_000
"""Simulated classes × ops; each takes 24 bytes and some 10 µs."""
MANY_CLASSES = 64
"""Whoever simulates many jobs passes this as `most_classes`."""


@dataclass(frozen=True)
class Differences:
    """How ranks differ at random, in rank order; only where every rank is simulated."""

    slowness: Floats
    """(ranks,): factor on compute time."""
    compute: Callable[[int], Floats] | None = None
    """Further factors on an op's compute time, (ranks,)."""
    collective: Callable[[int, Axis], Floats] | None = None
    """Factors on the time of the collective that an op starts, (groups,)."""


@dataclass(frozen=True)
class Simulation:
    """One simulated step."""

    job: Job
    program: Program
    partition: Partition
    prices: Prices
    timeline: des.Timeline
    slowness: Floats
    """(rank classes,): factor on the compute time of each class."""
    typical_slowness: float
    """Factor on compute time that all ranks share, because they wait for the slowest device."""
    global_links_left_out: bool = False
    """Whether contention on the links between dragonfly groups was left out to keep classes few."""

    @property
    def step_seconds(self) -> float:
        """Last rank's end minus first rank's start."""
        return self.timeline.step_seconds


def simulate(
    job: Job,
    *,
    engine: Engine = "folded",
    schedule: Schedule | None = None,
    scales: Scales = EXACT,
    most_classes: int | None = None,
    differences: Differences | None = None,
) -> Simulation:
    """Simulate one training step; grid and micro-batch must be concrete.

    With `differences` (and engine `des`) no two ranks are alike.

    With `most_classes`, a job whose ranks fall into more classes than that is simulated without
    contention on global links, which is what makes classes many; the result says so.
    """
    machine = job.machine
    program = compile_program(schedule or generate(job), job)
    layout = Layout.of(job)
    used: dict[Axis, None] = {COMMUNICATOR_AXIS[c]: None for c, _, _ in program.calls}
    axes: dict[Relation, AxisGroups] = {axis: groups_of(job.concrete_grid, axis, layout) for axis in used}
    if machine.cores is not None:
        axes["core"] = each_alone(job.ranks)
    library = machine.libraries[job.library or machine.library]
    prices = price(machine, library, program.calls, axes, layout, job.degraded)
    speed, typical = _slowness(job)
    if differences is not None:
        speed, typical = differences.slowness, 1.0
    left_out = False
    if engine == "folded":
        partition = fold(axes, prices.alike, prices.edges, speed, prices.capacity)
        if most_classes is not None and partition.rank_classes > most_classes:
            inside = prices.without_global_links()
            partition = fold(axes, prices.alike, inside.edges, speed, prices.capacity)
            left_out = True
    else:
        partition = unfolded(axes, prices.edges, job.ranks, prices.capacity)
    if (events := partition.rank_classes * len(program)) > MOST_EVENTS:
        remedy = "use --engine folded, " if engine == "des" else "use "
        raise fail(
            "engine",
            f"{partition.rank_classes:,} classes of ranks with {len(program):,} ops each are "
            f"{events:,} events, more than the {MOST_EVENTS:,} that fit into memory; {remedy}"
            "fewer ranks or fewer micro-steps",
        )
    slowness = speed[partition.representatives]
    setting = _setting(job, program, partition, prices, (slowness * scales.compute).tolist(), scales.collective)
    if differences is not None:
        setting = _differing(setting, program, differences)
    alike = engine == "folded" and lockstep.applies(setting)
    timeline = lockstep.run(program, setting) if alike else des.run(program, setting)
    return Simulation(job, program, partition, prices, timeline, slowness, typical, left_out)


def _differing(setting: des.Setting, program: Program, differences: Differences) -> des.Setting:
    """Add the factors of every op; classes are single ranks and groups, in order."""
    compute, collective = differences.compute, differences.collective
    axes = [
        COMMUNICATOR_AXIS[program.calls[target][0]] if code == START else None
        for code, target in zip(program.code, program.target, strict=True)
    ]
    return replace(
        setting,
        compute_factor=None if compute is None else [compute(op).tolist() for op in range(len(program))],
        collective_factor=None
        if collective is None
        else [collective(op, axis).tolist() if axis else [] for op, axis in enumerate(axes)],
    )


def _slowness(job: Job) -> tuple[Floats, float]:
    typical = slowest_factor(job.machine, job.ranks) if job.slowest_device else 1.0
    slowness = np.full(job.ranks, typical)
    for straggler in job.stragglers:
        slowness[straggler.rank] = typical * straggler.slowdown
    return slowness, typical


def _setting(
    job: Job, program: Program, partition: Partition, prices: Prices, slowness: list[float], scale: float
) -> des.Setting:
    communicators: dict[Communicator, None] = {c: None for c, _, _ in program.calls}
    transfers = [
        [
            transfer_of(prices, partition, number, COMMUNICATOR_AXIS[communicator], group, scale)
            for group in partition.groups[COMMUNICATOR_AXIS[communicator]]
        ]
        for number, (communicator, _, _) in enumerate(program.calls)
    ]
    return des.Setting(
        group_class={c: partition.group_class_of_rank_class[COMMUNICATOR_AXIS[c]] for c in communicators},
        members={c: [group.rank_classes for group in partition.groups[COMMUNICATOR_AXIS[c]]] for c in communicators},
        transfers=transfers,
        capacity=partition.capacity,
        slowness=slowness,
        compute_slowdown=float(job.machine.variation.compute_slowdown),
        collective_slowdown=float(job.machine.variation.collective_slowdown),
        core_use=_core_use(job.machine, partition),
        cores=frozenset(
            number
            for number, resource in enumerate(partition.resource_representatives)
            if prices.kind_of(resource) == "cores"
        ),
    )


def _core_use(machine: Machine, partition: Partition) -> list[tuple[tuple[int, float], ...]]:
    """Demands of each class of ranks on the cores they share, all ranks of the class at work."""
    if machine.cores is None:
        return [() for _ in range(partition.rank_classes)]
    return [
        tuple((use.resource_class, float(use.count)) for use in partition.groups["core"][g].uses)
        for g in partition.group_class_of_rank_class["core"]
    ]


def transfer_of(
    prices: Prices, partition: Partition, call: int, axis: Axis, group: GroupClass, scale: float = 1.0
) -> Transfer:
    """Price one call on one class of groups, with its demands on classes of resources."""
    cost = prices.costs[call][group.pattern]
    seconds = cost.transfer_seconds
    demands: dict[int, float] = {}
    for use in group.uses:
        moved = prices.label_bytes[axis][use.label].get(call, 0.0)
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
