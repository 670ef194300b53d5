"""Max-min fair sharing of links between the collectives that use them at the same time.

A *flow* is the transfer part of one running collective (or of a whole class of equal ones).
Left alone it runs at speed 1. On each resource it moves a known number of bytes, so speed s
means s times its peak rate there. When the flows' demands exceed a resource's capacity the
rates are filled up evenly: all flows' rates (bytes per second on their busiest resource) rise
together until a resource is full; the flows on it are frozen and the others go on rising.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FULL = 1e-12
"""Relative slack under which a resource counts as full."""


@dataclass(slots=True)
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


def assign_speeds(flows: Sequence[Flow], capacity: Sequence[float]) -> None:
    """Set the speed of every flow by progressive filling.

    Two flows that could each fill a link get half of it each:

    >>> flows = [Flow([(0, 10.0)], 10.0), Flow([(0, 10.0)], 10.0)]
    >>> assign_speeds(flows, [10.0])
    >>> [f.speed for f in flows]
    [0.5, 0.5]

    One that needs little keeps it, and the other takes the rest:

    >>> flows = [Flow([(0, 2.0)], 2.0), Flow([(0, 10.0)], 10.0)]
    >>> assign_speeds(flows, [10.0])
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
            if flow.peak_rate * flow.limit <= level * (1 + FULL) or any(
                r in full for r, _ in flow.demands
            ):
                flow.speed = min(flow.limit, level / flow.peak_rate)
                for resource, rate in flow.demands:
                    free[resource] = max(0.0, free[resource] - rate * flow.speed)
            else:
                still.append(flow)
        rising = still
