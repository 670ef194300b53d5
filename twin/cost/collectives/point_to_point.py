"""A message between two ranks: one hop, and its bytes over the link or NIC that joins them.

    T = base + hop + M / B

`exchange` sends one message each way at once: links and NICs carry both directions, so it takes as long as one.
Constants are those of one ring hop, which is what NCCL and RCCL run a send and receive by (assumed). Where it was
measured, a message between nodes reaches less of its NIC than a ring does (`message_efficiency` of a library), and one
inside a node goes by few channels up to a length (`local_messages`).
"""

from __future__ import annotations

from twin.cost.algorithms import register
from twin.cost.collective_group import Group
from twin.cost.collective_options import Option, core_seconds
from twin.description.library import CollectiveKind, Library

KINDS = ("send", "receive", "exchange")


@register("point-to-point")
def point_to_point_options(group: Group, library: Library, kind: CollectiveKind, bytes_: float) -> list[Option]:
    """Return one option per protocol, for a group of two."""
    if kind not in KINDS or group.ranks != 2:
        return []
    network = group.nodes > 1
    options = []
    for name in library.network_protocols if network else library.protocols:
        protocol = library.protocols[name]
        if network:
            hop = protocol.ring_network_hop_seconds + group.network_latency_seconds
            rate = group.network_rate * library.message_share * protocol.network_share
            wire = bytes_ / min(rate, group.uplink_rate)
        else:
            hop = protocol.ring_local_hop_seconds + group.local_latency_seconds
            wire = library.local_message_seconds(bytes_, group.local_rate, protocol)
        startup = float(protocol.base_seconds) + hop
        # one direction of two: both ends carry it, and either can carry as much the other way meanwhile
        carried = float(bytes_) / (1 if kind == "exchange" else 2)
        far = carried if network else 0.0
        options.append(
            Option(
                algorithm="point-to-point",
                protocol=name,
                seconds=startup + wire,
                startup_seconds=startup,
                wire_seconds=wire,
                local_bytes=0.0 if network else carried,
                nic_bytes=far,
                uplink_bytes=tuple(bytes_ * n for n in group.crossings),
                core_seconds=core_seconds(
                    library,
                    kind,
                    0.0 if network else float(bytes_),
                    float(bytes_) if network else 0.0,
                    1,
                    exchange=True,
                ),
            )
        )
    return options
