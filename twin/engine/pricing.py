"""Prices of a job's collectives on every placement that occurs, and the loads they put on links.

Shared resources are numbered: first those of each node (NICs, then directed links, then
ports, then its cores, then the memory of its sockets and its drives, then the directions of its NICs), node after node,
then the global links of each dragonfly group. Cores that all nodes share (a test bed on one host) are
those of node 0.

A resource that could carry everything that may ever run over it at once never slows anything
down, so it is left out: that is exact, and it keeps links apart that nobody notices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twin.cost.collective import CollectiveCost, collective_cost, resource_capacity
from twin.cost.collective_group import look
from twin.description.degraded import Degraded
from twin.description.library import Library
from twin.description.machine import Machine
from twin.engine.layout import CORES, Groups, Ints, Layout, Relation
from twin.engine.program import Call
from twin.engine.quiet import quiet_communicators
from twin.engine.symmetry import Edges
from twin.schedule.communicator import Communicator

ResourceKind = Literal["nic", "link", "port", "cores", "memory", "drives", "nic_out", "nic_in", "uplink"]
WAYS: tuple[ResourceKind, ResourceKind] = ("nic_out", "nic_in")


@dataclass(frozen=True)
class Prices:
    """Costs of all calls, and the labelled loads of each axis.

    `costs[call][pattern]` is the cost of a call on a placement pattern of its axis;
    `alike[axis][pattern]` is the same number for patterns on which every call costs the same.
    `label_bytes[axis][label][call]` are the bytes an edge with this label carries in a call; `quiet` communicators slow
    no compute.
    """

    costs: list[list[CollectiveCost]]
    alike: dict[Relation, Ints]
    edges: dict[Relation, Edges]
    label_bytes: dict[Relation, list[Mapping[int, float]]]
    capacity: NDArray[np.float64]
    resources: _Resources
    quiet: frozenset[str]

    def kind_of(self, resource: int) -> ResourceKind:
        """Say what a resource is, by its number."""
        return self.resources.kind_of(resource)

    def without_global_links(self) -> Prices:
        """Return the same prices with no load on links between dragonfly groups."""
        edges = {
            a: _only(e, np.arange(len(self.capacity)) < self.resources.first_uplink) for a, e in self.edges.items()
        }
        return replace(self, edges=edges)


@dataclass(frozen=True)
class _Resources:
    """Numbering of the shared resources of a job's nodes."""

    nics: int
    devices: int
    nodes: int
    switch_groups: int
    one_host: bool
    """Whether all nodes share the cores of one."""
    sockets: int = 0
    """Memories of a node's host that ranks share; 0: the machine does not describe it."""
    drives: bool = False
    """Whether the node has drives."""

    @property
    def per_node(self) -> int:
        """Resources of one node."""
        return self.directions + len(WAYS) * self.nics

    @property
    def directions(self) -> int:
        """Number of the first direction of a node's NICs within it: outwards of each, then inwards."""
        return self.cores + 1 + self.sockets + self.drives

    @property
    def cores(self) -> int:
        """Number of a node's cores within it."""
        return self.nics + self.devices * self.devices + self.devices

    def at(self, nodes: Ints, local: int) -> Ints:
        """Numbers of a resource on each of these nodes."""
        if local == self.cores and self.one_host:
            nodes = np.zeros_like(nodes)
        numbers: Ints = nodes * self.per_node + local
        return numbers

    @property
    def first_uplink(self) -> int:
        """Number of the first dragonfly group's global links."""
        return self.nodes * self.per_node

    def kind_of(self, resource: int) -> ResourceKind:
        """Say what a resource is, by its number."""
        if resource >= self.first_uplink:
            return "uplink"
        local = resource % self.per_node
        if local < self.nics:
            return "nic"
        if local >= self.directions:
            return WAYS[(local - self.directions) // self.nics]
        if local == self.cores:
            return "cores"
        if local > self.cores:
            return "memory" if local - self.cores <= self.sockets else "drives"
        return "link" if local < self.nics + self.devices * self.devices else "port"

    def local(self, kind: str, index: int) -> int:
        """Number of a resource within its node."""
        after = self.cores + 1
        offset = {
            "nic": 0,
            "link": self.nics,
            "port": self.nics + self.devices * self.devices,
            "cores": self.cores,
            "memory": after,
            "drives": after + self.sockets,
            "nic_out": self.directions,
            "nic_in": self.directions + self.nics,
        }
        return offset[kind] + index


def price(
    machine: Machine,
    library: Library,
    calls: Sequence[Call],
    communicators: Mapping[str, Communicator],
    axes: Mapping[Relation, Groups],
    layout: Layout,
    degraded: Sequence[Degraded] = (),
) -> Prices:
    """Price every call on every placement pattern of its axis.

    `degraded` parts of the machine have less capacity; a collective alone costs what it costs on
    a sound machine, and is slowed where it meets them. With a relation `core` among `axes`, every
    rank's compute loads the cores that it shares.
    """
    one_host = machine.cores is not None and machine.cores.shared_by == "machine"
    resources = _Resources(
        len(machine.nic.devices),
        machine.devices_per_node,
        int(layout.node.max()) + 1,
        int(layout.switch_group.max()) + 1,
        one_host,
        0 if machine.host is None else machine.host.domains,
        machine.disk is not None,
    )
    looked = {axis: [look(machine, p) for p in groups.placements] for axis, groups in axes.items()}
    costs = [
        [
            collective_cost(machine, library, kind, size, group.placement, group)
            for group in looked[communicators[communicator].partition]
        ]
        for communicator, kind, size in calls
    ]
    capacity = _capacity(machine, resources, degraded)
    found: dict[Relation, _Loads] = {}
    alike: dict[Relation, Ints] = {}
    for axis, groups in axes.items():
        if axis == CORES:
            found[axis] = _compute_loads(layout, resources)
            alike[axis] = np.zeros(1, dtype=np.int64)
            continue
        own = {i: costs[i] for i, call in enumerate(calls) if communicators[call[0]].partition == axis}
        streams = {i: calls[i][0] for i in own}
        found[axis] = _loads(groups, layout, resources, own, streams)
        alike[axis] = _alike(len(groups.placements), own)
    if library.nic_share is not None:
        capacity[_shared_nics(found.values(), resources)] *= library.nic_share
    demand = np.zeros(len(capacity))
    for loads in found.values():
        np.add.at(demand, loads.edges.resource, loads.rate)
    binding = demand > capacity
    edges = {axis: _only(loads.edges, binding) for axis, loads in found.items()}
    quiet = quiet_communicators(calls, library, communicators, axes)
    return Prices(costs, alike, edges, {a: f.label_bytes for a, f in found.items()}, capacity, resources, quiet)


@dataclass(frozen=True)
class _Loads:
    """All loads of one axis, before those that cannot bind are left out."""

    edges: Edges
    rate: NDArray[np.float64]
    """(edges,): most bytes per second an edge can carry, its communicators together."""
    label_bytes: list[Mapping[int, float]]


def _shared_nics(found: Iterable[_Loads], resources: _Resources) -> Ints:
    """Return the NICs that several groups of one relation use, and so at the same time."""
    several = np.zeros(resources.first_uplink, dtype=bool)
    for loads in found:
        edges = loads.edges
        pairs = np.unique(np.stack([edges.resource, edges.group]), axis=1)
        several |= np.bincount(pairs[0], minlength=resources.first_uplink)[: resources.first_uplink] > 1
    numbers = np.flatnonzero(several)
    local = numbers % resources.per_node
    nics: Ints = numbers[(local < resources.nics) | (local >= resources.directions)]
    return nics


def _compute_loads(layout: Layout, resources: _Resources) -> _Loads:
    """One core for every rank at work."""
    ranks = np.arange(len(layout.node), dtype=np.int64)
    edges = Edges(ranks, resources.at(layout.node, resources.cores), np.zeros_like(ranks))
    return _Loads(edges, np.ones(len(ranks)), [{}])


def _only(edges: Edges, binding: NDArray[np.bool_]) -> Edges:
    kept = binding[edges.resource]
    return Edges(edges.group[kept], edges.resource[kept], edges.label[kept])


def _alike(patterns: int, costs: Mapping[int, list[CollectiveCost]]) -> Ints:
    known: dict[tuple[tuple[float, float, float], ...], int] = {}
    keys = [
        tuple((c[p].startup_seconds, c[p].transfer_seconds, c[p].peak_bytes_per_second) for c in costs.values())
        for p in range(patterns)
    ]
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)


def _most(
    loads: Sequence[tuple[int, float]],
    number: int,
    costs: Mapping[int, list[CollectiveCost]],
    streams: Mapping[int, str],
) -> float:
    """Most bytes per second of these loads: one call of each communicator at a time."""
    fastest: dict[str, float] = {}
    for call, size in loads:
        rate = size / max(costs[call][number].transfer_seconds, 1e-30)
        fastest[streams[call]] = max(fastest.get(streams[call], 0.0), rate)
    return sum(fastest.values())


def _loads(
    groups: Groups,
    layout: Layout,
    resources: _Resources,
    costs: Mapping[int, list[CollectiveCost]],
    streams: Mapping[int, str],
) -> _Loads:
    labels: dict[tuple[tuple[int, float], ...], int] = {}
    columns: list[tuple[Ints, Ints, Ints]] = []
    rates: list[NDArray[np.float64]] = []

    def add(which: Ints, targets: Ints, loads: list[tuple[int, float]], number: int) -> None:
        label = labels.setdefault(tuple(loads), len(labels))
        columns.append(
            (np.repeat(which, targets.shape[1]), targets.ravel(), np.full(targets.size, label, dtype=np.int64))
        )
        rates.append(np.full(targets.size, _most(loads, number, costs, streams)))

    for number, placement in enumerate(groups.placements):
        which = np.flatnonzero(groups.pattern == number)
        per_pattern: dict[tuple[int, ...], dict[int, list[tuple[int, float]]]] = {}
        uplinks: dict[int, list[tuple[int, float]]] = {}
        ways: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for call, by_pattern in costs.items():
            cost = by_pattern[number]
            for pattern, uses in cost.node_loads.items():
                into = per_pattern.setdefault(pattern, {})
                for use in uses:
                    into.setdefault(resources.local(use.kind, use.index), []).append((call, use.bytes))
            for load in cost.ways:
                kind, at_node, nic = load.resource
                ways.setdefault((at_node, resources.local(kind, nic)), []).append((call, load.bytes))
            for g, size in enumerate(cost.uplink_loads):
                if size:
                    uplinks.setdefault(g, []).append((call, size))
        first = np.cumsum([0, *map(len, placement.nodes[:-1])])
        members = groups.members[which]
        nodes = layout.node[members[:, first]]
        kinds: dict[tuple[int, ...], list[int]] = {}
        for i, pattern in enumerate(placement.nodes):
            kinds.setdefault(pattern, []).append(i)
        for pattern, at in kinds.items():
            for local, loads in per_pattern.get(pattern, {}).items():
                add(which, resources.at(nodes[:, at], local), loads, number)
        for (at_node, local), loads in ways.items():
            add(which, resources.at(nodes[:, [at_node]], local), loads, number)
        starts = np.array([placement.switch_groups.index(g) for g in sorted(uplinks)], dtype=np.int64)
        for g, start in zip(sorted(uplinks), starts, strict=True):
            outside = layout.switch_group[members[:, first[start]]]
            add(which, outside[:, None] + resources.first_uplink, uplinks[g], number)
    rate = np.concatenate(rates) if rates else np.zeros(0)
    return _Loads(_join(columns), rate, [dict(loads) for loads in labels])


def _join(columns: list[tuple[Ints, Ints, Ints]]) -> Edges:
    if not columns:
        empty = np.zeros(0, dtype=np.int64)
        return Edges(empty, empty, empty)
    group, resource, label = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return Edges(group, resource, label)


def _capacity(machine: Machine, resources: _Resources, degraded: Sequence[Degraded]) -> NDArray[np.float64]:
    node = np.full(resources.per_node, np.inf)
    for kind, nic in product(("nic", *WAYS), range(resources.nics)):
        node[resources.local(kind, nic)] = resource_capacity(machine, kind, nic)
    for link in machine.fabric.links:
        for a, b in (link.devices, link.devices[::-1]):
            index = a * resources.devices + b
            node[resources.local("link", index)] = resource_capacity(machine, "link", index)
    if machine.fabric.port_bandwidth_bytes_per_second is not None:
        for device in range(resources.devices):
            node[resources.local("port", device)] = resource_capacity(machine, "port", device)
    node[resources.cores] = resource_capacity(machine, "cores", 0)
    for socket in range(resources.sockets):
        node[resources.local("memory", socket)] = resource_capacity(machine, "memory", socket)
    if resources.drives:
        node[resources.local("drives", 0)] = resource_capacity(machine, "drives", 0)
    uplink = resource_capacity(machine, "uplink", 0)
    capacity = np.concatenate([np.tile(node, resources.nodes), np.full(resources.switch_groups, uplink)])
    for one in degraded:
        left = one.rate if one.nic is None else machine.nic.left_with_one_slow(one.rate)
        for number in _numbers(one, resources):
            capacity[number] *= left
    return capacity


def _numbers(one: Degraded, resources: _Resources) -> list[int]:
    """Numbers of the resources that a degraded part is: a link is one in each direction."""
    kind, node, which = one.part
    if kind == "group":
        return [resources.first_uplink + which[0]]
    if kind == "link":
        a, b = which
        which = (a * resources.devices + b, b * resources.devices + a)
    kinds = (kind, *WAYS) if kind == "nic" else (kind,)
    return [(node or 0) * resources.per_node + resources.local(kind, index) for kind in kinds for index in which]
