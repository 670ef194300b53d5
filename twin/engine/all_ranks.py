"""Simulate a job with every rank different: device speeds, jitter and noise drawn by a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from twin.description.grid import Axis
from twin.description.job import Job
from twin.description.problems import fail
from twin.engine import every_role
from twin.engine.bundles import Bundles
from twin.engine.cube import Cube, Floats
from twin.engine.program import START
from twin.engine.ranks import Interference, Outcome, Price, Recorded, Variation, run
from twin.engine.setting import Timeline
from twin.engine.simulate import MANY_CLASSES, Differences, Simulation, simulate
from twin.engine.variation import Factors, drawn_slowness, speed_deviation
from twin.schedule.ops import axis_of

COMPUTE_SALT, COLLECTIVE_SALT = 1, 2


@dataclass(frozen=True)
class AllRanks:
    """One step of a job in which every rank was simulated."""

    nominal: Simulation
    """The same step without random differences, folded."""
    seed: int
    outcome: Outcome
    slowness: Floats
    """Compute time of each rank's device relative to the mean device, an array over the mesh."""
    recorded: tuple[int, ...]
    """Ranks whose events were kept."""
    of_roles: tuple[Recorded, ...]
    """Their events by role, ranks ascending in each."""

    @property
    def job(self) -> Job:
        """The job that was simulated."""
        return self.nominal.job

    @property
    def step_seconds(self) -> float:
        """Last rank's end minus first rank's start."""
        return self.outcome.last_end_seconds

    def of_recorded(self) -> Simulation:
        """Return what was kept, to be written like any simulation: one class per recorded rank.

        Ranks whose events were not kept are of class −1.
        """
        row = np.full(self.job.ranks, -1, dtype=np.int64)
        row[list(self.recorded)] = np.arange(len(self.recorded))
        partition = replace(
            self.nominal.partition, rank_class=row, representatives=np.array(self.recorded, dtype=np.int64)
        )
        parts = []
        for part, kept in zip(self.nominal.parts, self.of_roles, strict=True):
            timeline = Timeline(kept.start, kept.end, kept.arrival, np.ones_like(kept.start))
            own = np.array([rank for rank in self.recorded if rank in set(part.role.ranks.tolist())], dtype=np.int64)
            rows = own if len(self.nominal.parts) == 1 else np.sort(own)
            parts.append(replace(part, classes=row[rows], timeline=timeline))
        return replace(self.nominal, partition=partition, parts=tuple(parts))


def simulate_ranks(
    job: Job,
    *,
    seed: int | None = None,
    nominal: Simulation | None = None,
    record: Sequence[int] = (),
    random: bool = True,
    devices_seed: int | None = None,
) -> AllRanks:
    """Simulate one step with every rank on its own; grid and micro-batch must be concrete.

    Args:
        job: what to simulate.
        seed: of all that is random; the job's if None.
        nominal: the folded simulation of the same job, if there is one already.
        record: ranks whose events are kept.
        random: whether anything is drawn at all.
        devices_seed: of the devices' speeds, so that several steps are of the same devices; `seed` if None.

    Raises:
        DescriptionError: if ranks share cores, which needs an engine that follows them in time.
    """
    if job.machine.cores is not None:
        raise fail(
            "engine",
            "the all-ranks engine does not know ranks that share cores "
            f"(machine {job.machine.name}); use --engine folded or des",
        )
    seed = job.seed if seed is None else seed
    nominal = nominal or simulate(job, max_classes=MANY_CLASSES)
    cube = Cube.of(nominal.mesh)
    variation = drawn(job, cube, seed, devices_seed) if random else undrawn(nominal, cube)
    machine = job.machine.variation
    interference = Interference(float(machine.compute_slowdown), float(machine.collective_slowdown))
    if len(nominal.parts) > 1:
        outcome, of_roles = every_role.run(nominal, variation, interference, record)
        return AllRanks(nominal, seed, outcome, variation.slowness, tuple(record), of_roles)
    _need_axes(nominal)
    # with nothing random the shares of the folded simulation are exact as they are
    bundles = sharing(nominal) if random and varies(job) else {}
    outcome = run(nominal.program, cube, prices(nominal, cube), variation, interference, bundles, record)
    return AllRanks(nominal, seed, outcome, variation.slowness, tuple(record), (outcome.recorded,))


def _need_axes(nominal: Simulation) -> None:
    """Refuse what this engine does not know: one role's groups that are no axis of the mesh."""
    axes = nominal.mesh.axes
    used = {communicator for communicator, _, _ in nominal.program.calls}
    others = [c.name for c in nominal.communicators.values() if c.name in used and c.partition not in axes]
    if others:
        raise fail(
            "engine",
            f"the all-ranks engine knows one role's groups over the axes of a mesh, not those of {others[0]}; "
            "use --engine folded or des",
        )


def varies(job: Job) -> bool:
    """Whether anything is left to chance on the job's machine."""
    machine = job.machine.variation
    speeds = job.slowest_device and speed_deviation(job.machine) > 0.0
    return bool(speeds or machine.compute_jitter or machine.network_noise)


def undrawn(nominal: Simulation, cube: Cube) -> Variation:
    """Let all ranks be as they are in the folded simulation."""
    return Variation(cube.laid_out(nominal.slowness[nominal.partition.rank_class]))


def drawn(job: Job, cube: Cube, seed: int, devices_seed: int | None = None) -> Variation:
    """Draw device speeds and the factors of all ops."""
    devices = seed if devices_seed is None else devices_seed
    machine, ranks = job.machine.variation, cube.ranks
    return Variation(
        cube.laid_out(slowness_of_devices(job, devices)),
        Factors.draw(float(machine.compute_jitter or 0.0), ranks, seed, COMPUTE_SALT),
        Factors.draw(float(machine.network_noise), ranks, seed, COLLECTIVE_SALT),
    )


def slowness_of_devices(job: Job, seed: int) -> Floats:
    """Draw how many times longer each rank computes than the mean device, stragglers included, (ranks,)."""
    drawn = drawn_slowness(job.machine, job.ranks, seed) if job.slowest_device else np.ones(job.ranks)
    for straggler in job.stragglers:
        drawn[straggler.rank] *= straggler.slowdown
    return drawn


def differences(variation: Variation, cube: Cube) -> Differences:
    """Hand the same differences to the SimPy engine, which is how the two are compared."""
    compute, collective = variation.compute, variation.collective

    def of_compute(op: int) -> Floats:
        assert compute is not None
        return cube.in_rank_order(cube.from_memory(compute.of(op, cube.ranks)))

    def of_collective(op: int, axis: Axis) -> Floats:
        assert collective is not None
        groups = cube.ranks // cube.sizes[cube.number(axis)]
        return cube.from_memory(collective.of(op, groups), axis).reshape(-1)

    return Differences(
        cube.in_rank_order(variation.slowness), of_compute if compute else None, of_collective if collective else None
    )


def sharing(nominal: Simulation) -> dict[Axis, Bundles]:
    """Find the groups of each axis that share links inside or at the border of nodes."""
    found: dict[Axis, Bundles] = {}
    mesh, prices = nominal.mesh, nominal.prices
    for axis in mesh.axes:
        if axis in prices.edges:
            groups = mesh.ranks // mesh.size(axis)
            bundles = Bundles.of(axis, prices.edges[axis], groups, prices.resources.first_uplink)
            if bundles is not None:
                found[axis] = bundles
    return found


def prices(nominal: Simulation, cube: Cube) -> Callable[[int], Price]:
    """Price the collectives of every group, links shared as in the folded simulation."""
    program, partition = nominal.program, nominal.partition
    share = nominal.timeline.share
    startup: list[Floats] = []
    transfer: list[Floats] = []
    member: dict[str, list[int]] = {}
    place: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = {}
    for number, (communicator, _, _) in enumerate(program.calls):
        axis = axis_of(communicator)
        groups = partition.groups[axis]
        costs = [nominal.prices.costs[number][group.pattern] for group in groups]
        startup.append(np.array([cost.startup_seconds for cost in costs]))
        transfer.append(np.array([cost.transfer_seconds for cost in costs]))
        if axis not in place:
            member[axis] = [group.rank_classes[0] for group in groups]
            first = nominal.communicators[communicator].members[:, 0]
            of_class = np.array(partition.group_class_of_rank_class[axis], dtype=np.int64)
            place[axis] = cube.laid_out(of_class[partition.rank_class[first]], axis).astype(np.int64)

    def price(op: int) -> Price:
        assert program.code[op] == START
        call = program.target[op]
        axis = axis_of(program.calls[call][0])
        shares = share[member[axis], op]
        seconds = transfer[call] / shares
        if len(seconds) == 1:
            return Price(float(startup[call][0]), float(seconds[0]), float(shares[0]))
        at = place[axis]
        return Price(startup[call][at], seconds[at], shares[at])

    return price
