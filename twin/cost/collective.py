"""The cost of a collective: which algorithm runs, how long it takes alone, what it loads.

`collective_cost` answers for one group alone on the machine. Groups that run at the same time
share NICs, links and global links; the engine divides these by the loads given here. The time
has two parts: a start-up that contention does not touch, and a transfer that it stretches. Where
the hops overlap with the moving of other pieces they belong to the transfer, the first as well:
a start-up that held it would leave less to stretch when a link becomes slower to answer. A
collective that mostly waits for latency has a long transfer for its bytes and so leaves the
links to others.

Among the algorithms that are registered (`twin.cost.algorithms`) and the protocols that the
library has, the option that is fastest for this size and placement is taken, so the time never
falls when the bytes grow. (The libraries choose by a model of their own and are sometimes wrong
by 30 %; see docs on validation.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twin.cost.algorithms import options
from twin.cost.collective_group import Group, Pattern, look
from twin.cost.collective_options import NodeUse, node_uses
from twin.cost.placement import Placement
from twin.cost.rings import link_widths
from twin.cost.tiers import TIER_KINDS, TIER_RESOURCES, tier_capacity, tier_cost
from twin.description.library import CollectiveKind, Library
from twin.description.machine import Machine
from twin.description.problems import fail

__all__ = ["CollectiveCost", "Load", "NodeUse", "collective_cost", "options", "resource_capacity"]


@dataclass(frozen=True, slots=True)
class Load:
    """Use of one shared resource by one collective.

    `resource` is ("nic", i, NIC) on the i-th node of the placement, ("nic_out", i, NIC) and ("nic_in", i, NIC) what
    a message that goes one way fills of its directions; ("link", i,
    a · devices_per_node + b) for the directed link a → b inside it; ("port", i, device) for a
    switched node; ("uplink", g, 0) for all global links of the g-th dragonfly group; ("memory", i, socket),
    ("drives", i, 0) for a socket's memory and the node's drives.
    `bytes` are per direction, the busier direction.
    """

    resource: tuple[str, int, int]
    bytes: float


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """Time of one collective alone, and its loads.

    `node_loads` holds the loads of a node by the devices that the group uses there (a key of
    `placement.nodes`): thousands of equal nodes share one entry. `uplink_loads[g]` are the
    bytes that leave the g-th dragonfly group; empty if the group lies in one.
    """

    startup_seconds: float
    transfer_seconds: float
    algorithm: str
    protocol: str
    placement: Placement
    node_loads: Mapping[Pattern, tuple[NodeUse, ...]]
    uplink_loads: tuple[float, ...]
    core_seconds: float = 0.0
    """Time of a core that each member needs, where collectives run on shared cores."""
    ways: tuple[Load, ...] = ()
    """What a message that goes one way loads of the directions of NICs: two of them that go the same way share one."""

    @property
    def seconds(self) -> float:
        """Time when nothing else runs."""
        return self.startup_seconds + self.transfer_seconds

    @property
    def peak_bytes_per_second(self) -> float:
        """Rate by which it shares with others, alone: on its busiest NIC if it leaves the node.

        NICs are where collectives meet; inside a node it is the busiest link or port. Drives count what is written as
        what could be read meanwhile, which is no rate of anything else: their copies meet in the host's memory.
        """
        uses = [use for per_node in self.node_loads.values() for use in per_node if use.kind != "cores"]
        meeting = [u.bytes for u in uses if u.kind == "nic"] or [u.bytes for u in uses if u.kind != "drives"]
        sizes = meeting or [u.bytes for u in uses]
        return max(sizes, default=0.0) / max(self.transfer_seconds, 1e-30)

    @property
    def loads(self) -> tuple[Load, ...]:
        """All loads written out, node by node."""
        nodes = [
            Load((use.kind, i, use.index), use.bytes)
            for i, pattern in enumerate(self.placement.nodes)
            for use in self.node_loads.get(pattern, ())
        ]
        return (*nodes, *self.ways, *(Load(("uplink", g, 0), b) for g, b in enumerate(self.uplink_loads) if b))


def collective_cost(
    machine: Machine,
    library: Library,
    kind: CollectiveKind,
    bytes_: float,
    placement: Placement,
    group: Group | None = None,
) -> CollectiveCost:
    """Return what a collective costs alone.

    `bytes_` is the gathered buffer of a rank for an all-gather, the input of a rank for a
    reduce-scatter or an all-to-all, the buffer for an all-reduce or a broadcast, the message of a send, what
    a copy to or from the host moves. Another group of one costs nothing.

    Raises DescriptionError if the machine has no way to do it.
    `group` is what `look` says of the placement, for those who ask about it several times.
    """
    if bytes_ < 0:
        raise ValueError(f"bytes is {bytes_:g}; a collective moves 0 bytes or more")
    if kind in TIER_KINDS:
        return _tier_cost(machine, kind, bytes_, placement)
    if placement.ranks < 2:
        return CollectiveCost(0.0, 0.0, "none", "none", placement, {}, ())
    group = group or look(machine, placement)
    offered = options(group, library, kind, bytes_)
    if not offered:
        raise fail("library", f"{library.name} has no algorithm for {kind} over {placement.ranks} ranks", kind)
    best = min(offered, key=lambda option: option.seconds)
    transfer = max(best.wire_seconds, best.seconds - best.startup_seconds)
    loads = {pattern: node_uses(group, best, pattern) for pattern in group.patterns}
    return CollectiveCost(
        startup_seconds=best.seconds - transfer,
        transfer_seconds=transfer,
        algorithm=best.algorithm,
        protocol=best.protocol,
        placement=placement,
        core_seconds=best.core_seconds,
        node_loads=loads,
        uplink_loads=best.uplink_bytes,
        ways=_ways(kind, placement, loads),
    )


def _ways(kind: CollectiveKind, placement: Placement, loads: Mapping[Pattern, tuple[NodeUse, ...]]) -> tuple[Load, ...]:
    """Return what a message of the first member to the second (send), or back, loads of each direction of NICs.

    In `node_loads` it has half of its bytes, one direction of two: so two that cross fill a NIC, but so would only two
    that do not.
    """
    if kind not in ("send", "receive") or placement.node_count < 2:
        return ()
    ends = ("nic_out", "nic_in") if kind == "send" else ("nic_in", "nic_out")
    return tuple(
        Load((end, node, use.index), 2 * use.bytes)
        for node, end in enumerate(ends)
        for use in loads[placement.nodes[node]]
        if use.kind == "nic"
    )


def _tier_cost(machine: Machine, kind: CollectiveKind, bytes_: float, placement: Placement) -> CollectiveCost:
    """Return what a rank's own copy, update or file access costs, and what it loads of the node."""
    device = placement.nodes[0][0]
    cost = tier_cost(machine, kind, bytes_, device)
    loads: dict[Pattern, tuple[NodeUse, ...]] = {(device,): cost.uses} if cost.uses else {}
    return CollectiveCost(cost.startup_seconds, cost.transfer_seconds, "copy", "none", placement, loads, ())


def resource_capacity(machine: Machine, resource_kind: str, index: int) -> float:
    """Return what a resource carries per second and direction, in bytes (cores: in seconds of one).

    `resource_kind` and `index` are those of `Load.resource` (first and last entry).
    """
    if resource_kind in ("nic", "nic_out", "nic_in"):
        return machine.nic.rate_bytes_per_second
    if resource_kind == "link":
        edge = divmod(index, machine.devices_per_node)
        return link_widths(machine)[edge] * machine.fabric.efficiency
    if resource_kind == "port":
        port = machine.fabric.port_bandwidth_bytes_per_second
        return port * machine.fabric.efficiency if port is not None else float("inf")
    if resource_kind == "cores":
        cores = machine.cores
        return float("inf") if cores is None else float(cores.count)
    if resource_kind == "uplink":
        uplink = machine.network.group_bandwidth_bytes_per_second
        return float(uplink) if uplink is not None else float("inf")
    if resource_kind in TIER_RESOURCES:
        return tier_capacity(machine, resource_kind)
    raise ValueError(
        f"{resource_kind!r} is not a resource; use nic, nic_out, nic_in, link, port, cores, uplink, memory or drives"
    )
