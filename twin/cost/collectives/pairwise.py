"""All-to-all by pairs: each member sends each other one its part, one after the other (NCCL's grouped sends).

With p members, of which a on the fullest node, and parts of M/p bytes:

    a member moves    (a−1)·M/p inside its node, (p−a)·M/p to other nodes
    a node sends      a·(p−a)·M/p through its NICs
    T = base + hops + the slower of both

by each of the library's protocols, the fastest of which is taken. Where a member has one port for all that it moves, as
over PCIe, the port carries (p−1)·M/p. Constants are those of ring hops (assumed: nothing is fitted to a table of
all-to-alls; docs/explanation/validation.md has their errors).
"""

from __future__ import annotations

from twin.cost.algorithms import register
from twin.cost.collective_group import Group
from twin.cost.collective_options import Option, core_seconds
from twin.description.library import CollectiveKind, Library


@register("pairwise")
def pairwise_options(group: Group, library: Library, kind: CollectiveKind, bytes_: float) -> list[Option]:
    """Return one option per protocol; none for other kinds."""
    if kind != "all_to_all":
        return []
    part = bytes_ / group.ranks
    here, there = group.members - 1, group.ranks - group.members
    network = group.nodes > 1
    nic_bytes = group.members * there * part if network else 0.0
    local_rate = group.local_rate * library.ring.local_efficiency.of(kind)
    network_rate = group.network_rate * library.ring.network_efficiency.of(kind)
    inside = here + there if group.machine.fabric.port_carries_nics else here  # what a member's port carries
    options = []
    for name in library.network_protocols if network else library.protocols:
        protocol = library.protocols[name]
        rate = local_rate * protocol.local_share if here else group.member_rate * protocol.network_share
        local = inside * part / rate if inside else 0.0
        far = nic_bytes / (network_rate * protocol.network_share)
        local_hop = protocol.ring_local_hop_seconds + group.local_latency_seconds
        network_hop = protocol.ring_network_hop_seconds + group.network_latency_seconds
        startup = protocol.base_seconds + here * local_hop + (there * network_hop if network else 0.0)
        wire = max(local, far if network else 0.0)
        options.append(
            Option(
                algorithm="pairwise",
                protocol=name,
                seconds=startup + wire,
                startup_seconds=startup,
                wire_seconds=wire,
                local_bytes=inside * part,
                nic_bytes=nic_bytes,
                uplink_bytes=tuple(nic_bytes * n for n in group.crossings),
                core_seconds=core_seconds(library, kind, here * part, there * part, here + there),
            )
        )
    return options
