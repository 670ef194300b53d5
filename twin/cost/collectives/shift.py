"""A shift: each member of a ring sends to the next one, all at once.

    T = base + hop + M / B

B is that of the slowest hop: between nodes the one NIC of the member at the border, inside them the link of two
neighbours. (A ring all-gather moves as much, but a library lays rings through all NICs of a node.) Constants are those
of one ring hop, as for messages.
"""

from __future__ import annotations

from itertools import pairwise

from twin.cost.algorithms import register
from twin.cost.collective_group import Group
from twin.cost.collective_options import Option, core_seconds, posted
from twin.cost.rings import channels
from twin.description.library import CollectiveKind, Library


@register("shift")
def shift_options(group: Group, library: Library, kind: CollectiveKind, bytes_: float) -> list[Option]:
    """Return one option per protocol; none for other kinds."""
    if kind != "shift":
        return []
    network, local = group.nodes > 1, group.members > 1
    nics = max(len(of) for of in group.nics.values())
    options = []
    for name in library.network_protocols if network else library.protocols:
        protocol = library.protocols[name]
        hops, wires = [], []
        if local:
            hops.append(protocol.ring_local_hop_seconds + group.local_latency_seconds)
            wires.append(library.local_message_seconds(bytes_, _neighbours(group), protocol))
        if network:
            hops.append(protocol.ring_network_hop_seconds + group.network_latency_seconds)
            nic = min(group.machine.nic.rate_bytes_per_second, group.member_rate) * library.message_share
            wires.append(bytes_ / min(nic * protocol.network_share, group.uplink_rate))
        startup, wire = float(protocol.base_seconds) + max(hops), max(wires)
        options.append(
            Option(
                algorithm="shift",
                protocol=name,
                seconds=startup + wire,
                startup_seconds=startup,
                wire_seconds=wire,
                local_bytes=float(bytes_) if local else 0.0,
                # the border's NIC carries it alone: any of the group's may be that one
                nic_bytes=float(bytes_) * nics if network else 0.0,
                uplink_bytes=tuple(float(bytes_) * n for n in group.crossings),
                core_seconds=core_seconds(
                    library,
                    kind,
                    0.0 if network else float(bytes_),
                    float(bytes_) if network else 0.0,
                    1,
                    exchange=posted(group, library, kind, bytes_),
                ),
            )
        )
    return options


def _neighbours(group: Group) -> float:
    """Return the least rate between two members of a node that follow each other."""
    pairs = {pair for pattern in group.patterns for pair in pairwise(pattern)}
    if group.nodes == 1:
        pairs |= {(pattern[-1], pattern[0]) for pattern in group.patterns}
    rates = [channels(group.machine, (min(pair), max(pair))).bytes_per_second for pair in pairs]
    return min(rates) * float(group.machine.fabric.efficiency)
