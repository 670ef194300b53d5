"""Silent slowdowns as events in time: a device that is slow until it is found, a link until it is well again.

How much longer a step takes meanwhile is what the twin simulates for the job with one such part. Such
events begin at random, on all parts together at a constant rate; several at once cost what the worst does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from twin.description.degraded import Degraded
from twin.description.job import Job, Straggler
from twin.description.placement import nodes_used
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.goodput.long_run import Slowdown

PLACES = 8
"""Where a slow part is put, at random: on uneven grids it matters which rank or network card it is."""

Place = tuple[int, ...]
"""What is alike about places: numbers of classes of ranks."""


def slowdowns_of(simulation: Simulation) -> tuple[Slowdown, ...]:
    """Work out the slowdowns that a machine's `reliability` tells; none if it tells none.

    A step with one slow part is simulated for each of a few places drawn from a fixed seed; places of the
    same class of ranks cost one simulation.
    """
    job, rank_class = simulation.job, simulation.partition.rank_class
    known, found = job.machine.reliability, []
    rng = np.random.default_rng(78)
    if known is not None and (device := known.slow_device) is not None:
        where: list[tuple[Place, Job]] = []
        for rank in rng.integers(0, job.ranks, PLACES).tolist():
            slow = with_slow_device(job, rank, device.slowdown)
            where.append(((int(rank_class[rank]),), slow))
        found.append(
            Slowdown(
                "device",
                job.ranks / device.between_seconds,
                float(device.unnoticed_seconds),
                _factors(simulation, where),
                replaced=True,
            )
        )
    if known is not None and (link := known.slow_link) is not None:
        nodes, where = nodes_used(job.machine, job.ranks), []
        for _ in range(PLACES):
            node, nic = int(rng.integers(nodes)), int(rng.integers(len(job.machine.nic.devices)))
            place = (nic, *_classes_of_nic(simulation, node, nic))
            where.append((place, with_slow_link(job, node, nic, link.rate)))
        found.append(
            Slowdown(
                "link",
                nodes / link.between_seconds,
                float(link.duration_seconds),
                _factors(simulation, where),
                replaced=False,
            )
        )
    return tuple(found)


def found_after(slowdowns: Sequence[Slowdown], seconds: float) -> tuple[Slowdown, ...]:
    """Return the same slowdowns, slow devices found after so many seconds."""
    return tuple(replace(s, seconds=seconds) if s.replaced else s for s in slowdowns)


def _factors(simulation: Simulation, where: Sequence[tuple[Place, Job]]) -> tuple[float, ...]:
    healthy = simulation.step_seconds
    known = {place: max(1.0, simulate(slow).step_seconds / healthy) for place, slow in dict(where).items()}
    return tuple(known[place] for place, _ in where)


def _classes_of_nic(simulation: Simulation, node: int, nic: int) -> Place:
    machine = simulation.job.machine
    ranks = [node * machine.devices_per_node + device for device in machine.nic.devices[nic]]
    return tuple(int(simulation.partition.rank_class[r]) for r in ranks if r < simulation.job.ranks)


def with_slow_device(job: Job, rank: int, slowdown: float) -> Job:
    """Return the job with a rank's device slow, or slower than it was."""
    others = tuple(s for s in job.stragglers if s.rank != rank)
    worst = max([slowdown, *(s.slowdown for s in job.stragglers if s.rank == rank)])
    slow = (*others, Straggler(rank=rank, slowdown=float(worst)))
    return job.model_copy(update={"stragglers": slow})


def with_slow_link(job: Job, node: int, nic: int, rate: float) -> Job:
    """Return the job with a NIC of a node degraded, or more degraded than it was."""
    others = tuple(d for d in job.degraded if (d.node, d.nic) != (node, nic))
    worst = min([rate, *(d.rate for d in job.degraded if (d.node, d.nic) == (node, nic))])
    slow = (*others, Degraded(node=node, nic=nic, rate=float(worst)))
    return job.model_copy(update={"degraded": slow})


@dataclass(frozen=True)
class Slowness:
    """Slowness of steps at each moment of a run, drawn."""

    begins: Sequence[float] = (0.0,)
    """Where pieces begin, ascending, seconds from the start of the run; the first is 0."""
    factors: Sequence[float] = (1.0,)
    """Factor by which a step takes longer in each piece."""
    found: Sequence[float] = ()
    """When slow devices are found, ascending."""

    def next_found(self, now: float) -> float:
        """When the next slow device is found, infinity if none is."""
        at = bisect_right(self.found, now)
        return self.found[at] if at < len(self.found) else float("inf")

    def pieces(self, now: float, until: float) -> list[tuple[float, float]]:
        """Return (seconds, factor) of the pieces from one moment to another, in order."""
        first, last = bisect_right(self.begins, now) - 1, bisect_left(self.begins, until)
        edges = [now, *self.begins[first + 1 : last], until]
        factors = self.factors[first : max(last, first + 1)]
        lengths = [end - begin for begin, end in pairwise(edges)]
        return list(zip(lengths, factors, strict=True))


HEALTHY = Slowness()


def drawn(slowdowns: Sequence[Slowdown], seconds: float, seed: int) -> Slowness:
    """Draw when parts become slow in a run of so many seconds that begins with healthy ones.

    The same seed gives the same beginnings whatever the times until they end.
    """
    edges: list[tuple[float, float, int]] = []
    found: list[float] = []
    for number, slowdown in enumerate(slowdowns):
        rng = np.random.default_rng([seed, 78, number])
        begins = np.sort(rng.uniform(0.0, seconds, rng.poisson(slowdown.per_second * seconds)))
        factors = np.array(slowdown.factors)[rng.integers(0, len(slowdown.factors), len(begins))].tolist()
        shares = np.ones(len(begins)) if slowdown.replaced else rng.exponential(1.0, len(begins))
        ends = (begins + shares * slowdown.seconds).tolist()
        edges += [(at, factor, +1) for at, factor in zip(begins.tolist(), factors, strict=True)]
        edges += [(at, factor, -1) for at, factor in zip(ends, factors, strict=True)]
        found += ends if slowdown.replaced else []
    if not edges:
        return HEALTHY
    begins_at, worst_at = [0.0], [1.0]
    active: Counter[float] = Counter()
    for at, factor, change in sorted(edges):
        active[factor] += change
        worst = max((f for f, count in active.items() if count > 0), default=1.0)
        if worst != worst_at[-1]:
            begins_at.append(at)
            worst_at.append(worst)
    return Slowness(begins_at, worst_at, sorted(found))
