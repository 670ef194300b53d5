"""Rings inside a node: what a group of devices can move over the links between them.

A collective library lays *channels* over the node: rings that visit every member once, each
hop over a direct link or, where there is none, routed through other devices. The rate of a
group is what all its channels carry together before the first link is full.

* A hop takes the route with the fewest links; among those the one whose narrowest link is
  widest, then the one whose *first* link is widest (this spreads the two directions), then the
  lowest device numbers. Hardware routes are fixed tables, so there is one route per direction.
* If the machine names the library's rings over the whole node, those are used for the whole
  node. Otherwise all rings with the fewest links are used equally, or only the widest of them
  when that carries more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations

from twin.description.machine import Machine

Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of one group inside a node, with equal traffic on each.

    `bytes_per_second` is the peak rate of all channels together (before any efficiency), that
    is, the most bytes that can pass each member per second and direction. `use` says, for each
    directed link (a, b) or each port (device, device), which share of these bytes it carries.
    """

    bytes_per_second: float
    use: tuple[tuple[Edge, float], ...]
    switched: bool


def channels(machine: Machine, devices: tuple[int, ...]) -> Channels:
    """Return the channels of the members `devices` of one node.

    A single member needs no link: its rate is infinite.
    """
    if len(devices) < 2:
        return Channels(float("inf"), (), switched=False)
    port = machine.fabric.port_bandwidth_bytes_per_second
    if port is not None:
        return Channels(float(port), tuple(((d, d), 1.0) for d in sorted(devices)), switched=True)
    widths = link_widths(machine)
    rings = machine.fabric.rings if len(devices) == machine.devices_per_node else ()
    return pack(tuple(sorted(widths.items())), tuple(sorted(devices)), tuple(rings))


def link_widths(machine: Machine) -> dict[Edge, float]:
    """Return the peak rate of every directed link of the node, bytes per second."""
    widths: dict[Edge, float] = {}
    for link in machine.fabric.links:
        a, b = link.devices
        for edge in ((a, b), (b, a)):
            widths[edge] = widths.get(edge, 0.0) + float(link.bandwidth_bytes_per_second)
    return widths


@lru_cache(maxsize=1024)
def pack(
    widths: tuple[tuple[Edge, float], ...], devices: tuple[int, ...], rings: tuple[tuple[int, ...], ...]
) -> Channels:
    """Lay channels over a graph of directed links; `rings` fixes them, else they are searched.

    >>> k3 = tuple(((a, b), 10.0) for a in range(3) for b in range(3) if a != b)
    >>> pack(k3, (0, 1, 2), ()).bytes_per_second
    20.0
    """
    width = dict(widths)
    routes = {(a, b): route(width, a, b) for a in devices for b in devices if a != b}
    if rings:
        return _together(width, [_edges(ring, routes) for ring in rings])
    first, *others = devices
    orders = [(first, *order) for order in permutations(others)]
    found = [_edges(order, routes) for order in orders]
    fewest = min(map(len, found))
    shortest = [edges for edges in found if len(edges) == fewest]
    narrowest = [min(width[e] / edges.count(e) for e in edges) for edges in shortest]
    widest = [edges for edges, w in zip(shortest, narrowest, strict=True) if w == max(narrowest)]
    return max((_together(width, shortest), _together(width, widest)), key=lambda c: c.bytes_per_second)


def route(width: dict[Edge, float], source: int, target: int) -> tuple[Edge, ...]:
    """Return the links from one device to another.

    >>> route({(0, 1): 5.0, (1, 2): 5.0}, 0, 2)
    ((0, 1), (1, 2))
    """
    paths: list[tuple[int, ...]] = [(source,)]
    seen = {source}
    while paths:
        arrived = [p for p in paths if p[-1] == target]
        if arrived:
            candidates = [tuple(pairwise(p)) for p in arrived]
            return max(candidates, key=lambda es: (min(width[e] for e in es), width[es[0]]))
        paths = [(*p, b) for p in paths for (a, b) in sorted(width) if a == p[-1] and b not in seen]
        seen |= {p[-1] for p in paths}
    raise ValueError(f"devices {source} and {target} are not connected by the fabric's links")


def _edges(order: tuple[int, ...], routes: dict[Edge, tuple[Edge, ...]]) -> tuple[Edge, ...]:
    return tuple(e for a, b in zip(order, order[1:] + order[:1], strict=True) for e in routes[a, b])


def _together(width: dict[Edge, float], rings: list[tuple[Edge, ...]]) -> Channels:
    """All rings at the same rate, as fast as the fullest link allows."""
    uses: dict[Edge, int] = {}
    for ring in rings:
        for edge in ring:
            uses[edge] = uses.get(edge, 0) + 1
    each = min(width[edge] / n for edge, n in uses.items())
    shares = tuple((edge, n / len(rings)) for edge, n in sorted(uses.items()))
    return Channels(each * len(rings), shares, switched=False)
