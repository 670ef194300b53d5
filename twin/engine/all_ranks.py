"""Simulate a job with every rank different: device speeds, jitter and noise drawn by a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from twin.description.grid import Mesh
from twin.description.job import Job
from twin.description.problems import fail
from twin.engine import every_role
from twin.engine.bundles import Bundles
from twin.engine.cube import Along, Cube, Floats
from twin.engine.layout import Ints
from twin.engine.program import START
from twin.engine.ranks import Interference, Outcome, Price, Recorded, Variation, run
from twin.engine.setting import Timeline
from twin.engine.simulate import MANY_CLASSES, simulate
from twin.engine.simulation import Simulation
from twin.engine.variation import Factors, drawn_slowness, speed_deviation
from twin.schedule.communicator import Communicator
from twin.strategies import strategy_of

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
            timeline = Timeline.of(kept.start, kept.end, kept.arrival, np.ones_like(kept.start))
            own = np.array([rank for rank in self.recorded if rank in set(part.role.ranks.tolist())], dtype=np.int64)
            rows = own if len(self.nominal.parts) == 1 else np.sort(own)
            parts.append(replace(part, classes=row[rows], timeline=timeline))
        slowness = self.slowness.reshape(-1)[list(self.recorded)]
        return replace(self.nominal, partition=partition, parts=tuple(parts), slowness=slowness)


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
    cube = cube_of_simulation(nominal)
    variation = drawn(job, cube, seed, devices_seed) if random else undrawn(nominal, cube)
    machine = job.machine.variation
    interference = Interference(float(job.compute_slowdown), float(machine.collective_slowdown), nominal.prices.quiet)
    anything_drawn = random and varies(job)
    if len(nominal.parts) > 1:
        outcome, of_roles = every_role.run(nominal, variation, interference, record, drawn=anything_drawn)
        return AllRanks(nominal, seed, outcome, variation.slowness, tuple(record), of_roles)
    along = groups_along(nominal, cube)
    # with nothing random the shares of the folded simulation are exact as they are
    bundles = sharing(nominal, along) if anything_drawn else {}
    outcome = run(nominal.program, cube, along, prices(nominal, cube, along), variation, interference, bundles, record)
    return AllRanks(nominal, seed, outcome, variation.slowness, tuple(record), (outcome.recorded,))


def cube_of_simulation(nominal: Simulation) -> Cube:
    """Lay out ranks so that groups lie along axes, or parts of them; several roles' ranks are worked through apart."""
    return _cube(nominal.mesh, nominal.communicators.values(), len(nominal.parts))


def cube_of_job(job: Job) -> Cube:
    """Lay out a job's ranks as its simulation does."""
    strategy = strategy_of(job)
    return _cube(job.concrete_grid.mesh, strategy.communicators(job), len(strategy.roles(job)))


def _cube(mesh: Mesh, communicators: Iterable[Communicator], roles: int) -> Cube:
    return Cube.of(mesh, (each.members for each in communicators) if roles == 1 else ())


def groups_along(nominal: Simulation, cube: Cube) -> dict[str, Along]:
    """Return along which axes the groups of each communicator that is used lie; refuse one role's groups of others."""
    found = {}
    for name in dict.fromkeys(communicator for communicator, _, _ in nominal.program.calls):
        along = cube.along(nominal.communicators[name].members)
        if along is None:
            raise fail(
                "engine",
                f"the all-ranks engine knows one role's groups along the axes of a mesh, not those of {name}; "
                "use --engine folded or des",
            )
        found[name] = along
    return found


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


def sharing(nominal: Simulation, along: Mapping[str, Along]) -> dict[str, Bundles]:
    """Find the groups of each communicator that share links inside or at the border of nodes, or what a host has."""
    of_relation: dict[str, Bundles | None] = {}
    prices, found = nominal.prices, {}
    for name, axes in along.items():
        communicator = nominal.communicators[name]
        if (relation := communicator.partition) in prices.edges:
            if relation not in of_relation:
                first = prices.resources.first_uplink
                groups = len(communicator.members)
                of_relation[relation] = Bundles.of(axes, prices.edges[relation], groups, first)
            if (bundles := of_relation[relation]) is not None:
                found[name] = bundles
    return found


def prices(nominal: Simulation, cube: Cube, along: Mapping[str, Along]) -> Callable[[int], Price]:
    """Price the collectives of every group, links shared as in the folded simulation."""
    program, partition = nominal.program, nominal.partition
    share = nominal.timeline.share
    startup: list[Floats] = []
    transfer: list[Floats] = []
    member: dict[str, list[int]] = {}
    place: dict[str, Ints] = {}
    for number, (communicator, _, _) in enumerate(program.calls):
        relation = nominal.communicators[communicator].partition
        groups = partition.groups[relation]
        costs = [nominal.prices.costs[number][group.pattern] for group in groups]
        startup.append(np.array([cost.startup_seconds for cost in costs]))
        transfer.append(np.array([cost.transfer_seconds for cost in costs]))
        if communicator not in place:
            member[communicator] = [group.rank_classes[0] for group in groups]
            of_class = np.array(partition.group_class_of_rank_class[relation], dtype=np.int64)
            of_rank = cube.laid_out(of_class[partition.rank_class]).astype(np.int64)
            one = tuple(slice(0, 1) if axis in along[communicator] else slice(None) for axis in range(of_rank.ndim))
            place[communicator] = of_rank[one]

    def price(op: int) -> Price:
        assert program.code[op] == START
        call = program.target[op]
        communicator = program.calls[call][0]
        shares = share[member[communicator], op]
        seconds = transfer[call] / shares
        if len(seconds) == 1:
            return Price(float(startup[call][0]), float(seconds[0]), float(shares[0]))
        at = place[communicator]
        return Price(startup[call][at], seconds[at], shares[at])

    return price
