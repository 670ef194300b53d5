"""All-to-all by pairs: each member sends each other one its part, one after the other (NCCL's grouped sends).

With p members, of which a on a node, and parts of M/p bytes:

    a member moves    (a−1)·M/p inside its node, (p−a)·M/p to other nodes
    a node sends      a·(p−a)·M/p through its NICs
    T = base + hops + the slower of both, on the slowest node

in the faster of two ways: short parts go by few channels, which start sooner and move slower (`Pairwise` of a library);
between nodes there is one, which starts like the former.
A library without these constants has those of its ring hops, by each of its protocols. Where a member has one port for
all that it moves, as over PCIe, the port carries (p−1)·M/p. Between dragonfly groups goes what a group's nodes have for
all others; nothing of it stays near, as in a ring.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twin.cost.algorithms import register
from twin.cost.collective_group import Group, nic_rate
from twin.cost.collective_options import Option, core_seconds, posted
from twin.description.library import CollectiveKind, Library


@dataclass(frozen=True, slots=True)
class Way:
    """One way of doing it: its start, and how fast the rest moves."""

    protocol: str
    base_seconds: float
    message_seconds: float
    """For each further member of the node, the link's latency included."""
    network_message_seconds: float
    local_rate: float
    network_share: float
    """Share of its NICs' rate that a node reaches."""


@register("pairwise")
def pairwise_options(group: Group, library: Library, kind: CollectiveKind, bytes_: float) -> list[Option]:
    """Return one option for each way; none for other kinds."""
    if kind != "all_to_all":
        return []
    part = bytes_ / group.ranks
    here, there = group.members - 1, group.ranks - group.members
    network = group.nodes > 1
    sent = {pattern: len(pattern) * (group.ranks - len(pattern)) * part for pattern in group.patterns}
    slowest = max(bytes_of / nic_rate(group.machine, pattern) for pattern, bytes_of in sent.items()) if network else 0.0
    inside = here + there if group.machine.fabric.port_carries_nics else here  # what a member's port carries
    leaving = tuple(members * (group.ranks - members) * part for members in _members_by_switch_group(group))
    options = []
    for way in _measured_ways(group, library) or _ways_of_rings(group, library, kind):
        local = inside * part / way.local_rate if inside else 0.0
        far = slowest / way.network_share
        startup = way.base_seconds + here * way.message_seconds + there * way.network_message_seconds
        wire = max(local, far, group.uplink_seconds(leaving))
        options.append(
            Option(
                algorithm="pairwise",
                protocol=way.protocol,
                seconds=startup + wire,
                startup_seconds=startup,
                wire_seconds=wire,
                local_bytes=inside * part,
                nic_bytes=max(sent.values()) if network else 0.0,
                nic_bytes_by_pattern=sent if network else None,
                uplink_bytes=leaving,
                core_seconds=core_seconds(
                    library, kind, here * part, there * part, here + there, exchange=posted(group, library, kind, part)
                ),
            )
        )
    return options


def _measured_ways(group: Group, library: Library) -> list[Way]:
    """Return the ways of a library that has constants for all-to-alls; none otherwise."""
    constants = library.pairwise
    if constants is None:
        return []
    few = ("few channels", constants.few_channels_base_seconds, constants.few_channels_efficiency)
    every = ("all channels", constants.base_seconds, constants.local_efficiency)
    # between nodes NICs bind, and one start was measured
    shares = (few, every) if group.nodes == 1 else (("all channels", few[1], every[2]),)
    return [
        Way(
            protocol=name,
            base_seconds=float(base),
            message_seconds=group.local_latency_seconds,
            network_message_seconds=constants.network_message_seconds + group.network_latency_seconds,
            local_rate=_port(group, group.local_rate * share, 1.0),
            network_share=float(constants.network_efficiency),
        )
        for name, base, share in shares
    ]


def _ways_of_rings(group: Group, library: Library, kind: CollectiveKind) -> list[Way]:
    """Return a way for each protocol, with the constants of ring hops."""
    ways = []
    for name in library.network_protocols if group.nodes > 1 else library.protocols:
        protocol = library.protocols[name]
        efficiency = library.ring.local_efficiency.of(kind)
        ways.append(
            Way(
                protocol=name,
                base_seconds=float(protocol.base_seconds),
                message_seconds=protocol.ring_local_hop_seconds + group.local_latency_seconds,
                network_message_seconds=protocol.ring_network_hop_seconds + group.network_latency_seconds,
                local_rate=_port(group, group.local_rate * efficiency * protocol.local_share, protocol.network_share),
                network_share=library.ring.network_efficiency.of(kind) * protocol.network_share,
            )
        )
    return ways


def _port(group: Group, together: float, alone: float) -> float:
    """Return the rate of a member's port: with others on its node as copies reach it, alone to the NICs."""
    return together if group.members > 1 else group.member_rate * alone


def _members_by_switch_group(group: Group) -> tuple[int, ...]:
    """Count the members in each dragonfly group; empty if there is only one."""
    if not group.crossings:
        return ()
    inside = [len(devices) for devices in group.placement.nodes]
    return tuple(int(n) for n in np.bincount(group.placement.switch_groups, weights=inside))
