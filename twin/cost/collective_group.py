"""What a collective sees of its group: members, hops between nodes, rates.

Everything here is for one group alone on the machine. Two nodes on which the group uses the
same devices look alike, so quantities are kept per *pattern* (the devices used on a node).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twin.cost.placement import Placement
from twin.cost.rings import Channels, channels
from twin.description.machine import Machine

Pattern = tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """A group on a machine. Rates are bytes per second and direction, before library efficiency."""

    machine: Machine
    placement: Placement
    ranks: int
    nodes: int
    members: int
    """Most members on one node."""
    patterns: tuple[Pattern, ...]
    channels: dict[Pattern, Channels]
    """Channels inside the node, by pattern."""
    nics: dict[Pattern, tuple[int, ...]]
    """NICs the group can use on a node, by pattern."""
    local_rate: float
    """All channels of the narrowest node, usable by copy kernels; infinite with one member."""
    network_rate: float
    """All NICs of the node with the fewest, usable, as far as its members reach them; infinite on one node."""
    local_latency_seconds: float
    """Hardware latency of a hop inside a node."""
    network_latency_seconds: float
    """Hardware latency of a hop between neighbouring nodes of the ring; the hop that leaves the
    dragonfly group decides if there is one, for all members step together."""
    far_latency_seconds: float
    """Hardware latency of a hop between far nodes of the group (tree, recursive doubling)."""
    crossings: tuple[int, ...]
    """Ring hops that leave each dragonfly group of the placement; empty if it is only one."""

    def nics_of(self, pattern: Pattern) -> int:
        """NICs that the group can use on a node: of sets that have several all of them."""
        return len(self.nics[pattern]) * (self.machine.nic.count or 1)

    @property
    def member_rate(self) -> float:
        """Rate at which one member reaches NICs: that of its port, if all goes through it."""
        return port_to_nics(self.machine)

    @property
    def uplink_rate(self) -> float:
        """Ring rate at which the busiest group's global links are full."""
        total = self.machine.network.group_bandwidth_bytes_per_second
        busiest = max(self.crossings, default=0)
        return float(total) / busiest if total is not None and busiest else float("inf")

    def uplink_seconds(self, leaving_bytes: tuple[float, ...]) -> float:
        """Return the time that global links need for what leaves each dragonfly group: the busiest one's."""
        total = self.machine.network.group_bandwidth_bytes_per_second
        return max(leaving_bytes, default=0.0) / total if total is not None else 0.0


def look(machine: Machine, placement: Placement) -> Group:
    """Reduce a placement to what the cost of a collective depends on."""
    patterns = tuple(sorted(set(placement.nodes)))
    nodes = placement.node_count
    inside = {pattern: channels(machine, pattern) for pattern in patterns}
    nics = {pattern: tuple(sorted({machine.nic_of(d) for d in pattern})) for pattern in patterns}
    crossings = ring_crossings(placement)
    network = machine.network
    near = float(machine.nic.latency_seconds)
    switch = float(network.switch_latency_seconds)
    outside = float(network.group_latency_seconds or 0.0) + switch
    # Neighbours share a first-level switch except at its border; see Placement.contiguous.
    leave_switch = min(1.0, 1.0 / network.nodes_per_switch)
    one_switch = nodes <= network.nodes_per_switch
    return Group(
        machine=machine,
        placement=placement,
        ranks=placement.ranks,
        nodes=nodes,
        members=max(map(len, patterns)),
        patterns=patterns,
        channels=inside,
        nics=nics,
        local_rate=min(c.bytes_per_second for c in inside.values()) * machine.fabric.efficiency,
        network_rate=min(nic_rate(machine, pattern) for pattern in patterns) if nodes > 1 else float("inf"),
        local_latency_seconds=float(machine.fabric.latency_seconds),
        network_latency_seconds=near + (0.0 if one_switch else leave_switch * switch) + (outside if crossings else 0.0),
        far_latency_seconds=near + (0.0 if one_switch else switch) + (outside if crossings else 0.0),
        crossings=crossings,
    )


def nic_rate(machine: Machine, pattern: Pattern) -> float:
    """Return the rate of all NICs that devices of a node use, as far as they reach them."""
    nics = {machine.nic_of(device) for device in pattern}
    return min(len(nics) * machine.nic.rate_bytes_per_second, len(pattern) * port_to_nics(machine))


def port_to_nics(machine: Machine) -> float:
    """Return the rate at which a device reaches NICs: infinite where they have a way of their own."""
    port = machine.fabric.port_bandwidth_bytes_per_second
    if port is None or not machine.fabric.port_carries_nics:
        return float("inf")
    return port * machine.fabric.efficiency


def ring_crossings(placement: Placement) -> tuple[int, ...]:
    """Count the hops of the ring over the nodes that leave each dragonfly group.

    >>> ring_crossings(Placement(((0,), (0,), (0,)), (0, 0, 1)))
    (1, 1)
    """
    groups = placement.switch_groups
    if not any(groups):
        return ()
    array = np.asarray(groups)
    leaving = array[array != np.roll(array, -1)]
    return tuple(np.bincount(leaving, minlength=int(array.max()) + 1).tolist())
