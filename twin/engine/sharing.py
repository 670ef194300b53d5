"""Max-min fair sharing of links between the collectives that use them at the same time.

Cores, where ranks share them, are shared by threads instead: each rank at work is one thread, and a
collective is a thread of each of its members that needs a core for part of the time only. Who wants
less than an equal share gets all of it; what links do not let a collective use goes to the others.

A *flow* is the transfer part of one running collective (or of a whole class of equal ones).
Left alone it runs at speed 1. On each resource it moves a known number of bytes, so speed s
means s times its peak rate there. When the flows' demands exceed a resource's capacity the
rates are filled up evenly: all flows' rates (bytes per second on their busiest resource) rise
together until a resource is full; the flows on it are frozen and the others go on rising.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

FULL = 1e-12
"""Relative slack under which a resource counts as full."""


@dataclass(slots=True, eq=False)
class Flow:
    """One class of equal collectives in their transfer part.

    `demands` are (resource, bytes per second of all flows of the class together on that
    resource at speed 1); `peak_rate` is one flow's rate on its busiest resource.
    """

    demands: Sequence[tuple[int, float]]
    peak_rate: float
    limit: float = 1.0
    """Speed when it has the links to itself; below 1 beside compute."""
    speed: float = 1.0
    core_rate: float = 0.0
    """Cores that one thread of it keeps busy at speed 1."""


def assign_speeds(flows: Sequence[Flow], capacity: Sequence[float], cores: Collection[int] = frozenset()) -> None:
    """Set the speed of every flow; `cores` are the resources that threads share.

    One core for two ranks at work and a collective that needs a tenth of it:

    >>> flows = [Flow([(0, 1.0)], 0.0, core_rate=1.0) for _ in range(2)]
    >>> flows.append(Flow([(0, 0.1)], 0.0, core_rate=0.1))
    >>> assign_speeds(flows, [1.0], cores={0})
    >>> [round(f.speed, 3) for f in flows]
    [0.45, 0.45, 1.0]
    """
    if not cores:
        _fill(flows, capacity)
        return
    wanted = [flow.limit for flow in flows]
    on_links = [Flow([d for d in flow.demands if d[0] not in cores], flow.peak_rate) for flow in flows]
    threads = [Flow([d for d in flow.demands if d[0] in cores], flow.core_rate, flow.limit) for flow in flows]
    _fill(threads, capacity)
    for link, thread in zip(on_links, threads, strict=True):
        link.limit = thread.speed
    _fill(on_links, capacity)
    for link, thread, limit in zip(on_links, threads, wanted, strict=True):
        # what has no links is not held up by them, and may use the cores that others leave
        thread.limit = link.speed if link.demands else limit
    _fill(threads, capacity)
    for flow, thread in zip(flows, threads, strict=True):
        flow.speed = thread.speed


def _fill(flows: Sequence[Flow], capacity: Sequence[float]) -> None:
    """Set the speed of every flow by progressive filling.

    Two flows that could each fill a link get half of it each:

    >>> flows = [Flow([(0, 10.0)], 10.0), Flow([(0, 10.0)], 10.0)]
    >>> _fill(flows, [10.0])
    >>> [f.speed for f in flows]
    [0.5, 0.5]

    One that needs little keeps it, and the other takes the rest:

    >>> flows = [Flow([(0, 2.0)], 2.0), Flow([(0, 10.0)], 10.0)]
    >>> _fill(flows, [10.0])
    >>> [round(f.speed, 3) for f in flows]
    [1.0, 0.8]
    """
    free = {resource: capacity[resource] for flow in flows for resource, _ in flow.demands}
    demand = dict.fromkeys(free, 0.0)
    for flow in flows:
        flow.speed = flow.limit
        for resource, rate in flow.demands:
            demand[resource] += rate * flow.limit
    if all(demand[r] <= free[r] * (1 + FULL) for r in free):
        return
    rising = [flow for flow in flows if flow.demands]
    while rising:
        # Level λ is the common rate; a flow's speed is λ / peak_rate, at most its limit.
        slope = dict.fromkeys(free, 0.0)
        for flow in rising:
            for resource, rate in flow.demands:
                slope[resource] += rate / flow.peak_rate
        limit = min((free[r] / s for r, s in slope.items() if s > 0), default=float("inf"))
        cap = min(flow.peak_rate * flow.limit for flow in rising)
        level = min(limit, cap)
        full = {r for r, s in slope.items() if s > 0 and free[r] / s <= level * (1 + FULL)}
        still = []
        for flow in rising:
            if flow.peak_rate * flow.limit <= level * (1 + FULL) or any(r in full for r, _ in flow.demands):
                flow.speed = min(flow.limit, level / flow.peak_rate)
                for resource, rate in flow.demands:
                    free[resource] = max(0.0, free[resource] - rate * flow.speed)
            else:
                still.append(flow)
        rising = still
