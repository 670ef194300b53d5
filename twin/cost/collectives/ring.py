"""Ring algorithms: all-gather, reduce-scatter, all-reduce, and pipelined broadcast.

With p members, M bytes (the whole buffer) and a rate B past each member:

    bytes past each member   M·(p−1)/p   (all-reduce twice that)
    steps                    p−1         (all-reduce 2(p−1))

* On one node the hops of the first piece add to the transfer: T = base + steps·hop + bytes/B.
* Across nodes each step waits for a network hop somewhere in the ring. A Simple step takes at
  least `network_step` (the proxy thread's work), or as long as the hops' latencies on average;
  these overlap with the transfer of other pieces because posting and moving are done by
  different hardware: T = base + √(latency² + (bytes/B)²). The measured plateau of RCCL's
  reduce-scatter (27 ms at 1024 GCDs from 64 to 512 MiB) is this shape.
* LL and LL128 carry a flag with every 8 or 128 bytes, so a step only takes its hops.
"""

from __future__ import annotations

from math import hypot

from twin.cost.algorithms import register
from twin.cost.collective_group import Group
from twin.cost.collective_options import Option, core_seconds
from twin.description.library import CollectiveKind, Library

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")


@register("ring")
def ring_options(group: Group, library: Library, kind: CollectiveKind, bytes_: float) -> list[Option]:
    """Return one option per protocol; none for messages, copies and all-to-alls."""
    if kind not in KINDS:
        return []
    passes = 2 if kind == "all_reduce" else 1
    steps = passes * (group.ranks - 1)
    moved = float(bytes_) if kind == "broadcast" else passes * bytes_ * (group.ranks - 1) / group.ranks
    between = passes * (group.nodes - 1)
    network = group.nodes > 1
    local = group.local_rate * library.ring.local_efficiency.of(kind)
    nic = group.network_rate * library.ring.network_efficiency.of(kind)
    fastest = min(local, nic, group.uplink_rate)
    options = []
    for name in library.network_protocols if network else library.protocols:
        protocol = library.protocols[name]
        local_hop = protocol.ring_local_hop_seconds + group.local_latency_seconds
        network_hop = protocol.ring_network_hop_seconds + group.network_latency_seconds
        latency = (steps - between) * local_hop + between * network_hop
        rate = fastest * (protocol.network_share if network else protocol.local_share)
        transfer = moved / rate
        base = float(protocol.base_seconds)
        if network and name == "Simple":
            rest = hypot(max(latency, steps * library.ring.network_step.of(kind)), transfer)
            startup = base  # the first hop is one of those that overlap
        else:
            rest = latency + transfer
            startup = base + (network_hop if network else local_hop)
        far = moved * group.nodes / group.ranks if network else 0.0
        options.append(
            Option(
                algorithm="ring",
                protocol=name,
                seconds=base + rest,
                startup_seconds=startup,
                wire_seconds=transfer,
                local_bytes=moved if group.members > 1 else 0.0,
                nic_bytes=moved if network else 0.0,
                uplink_bytes=tuple(moved * n for n in group.crossings),
                core_seconds=core_seconds(library, kind, moved - far, far, steps, exchange=False),
            )
        )
    return options
