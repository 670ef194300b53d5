"""Double binary tree between nodes with a chain inside each node: all-reduce.

Each of the two trees carries half of the buffer up (reduced) and down again; a node is a leaf
in one and has two children in the other, so it sends about 2·M·(N−1)/N bytes, as in a ring, but
the way of a piece is only 2·log₂ N network hops. The message is cut into pieces that follow one
another; a hop costs its latency plus the time of one piece:

    T = base + 2(g−1)·(hop + piece/B_local) + 2·log₂ N·(hop + piece/B) + bytes/B

Longer messages have longer pieces, √(M · piece₀) up to a limit: the square root is the piece that
makes this sum smallest, and what the library's halving rule for its pieces approximates.
"""

from __future__ import annotations

from math import log2, sqrt

from twin.cost.collective_group import Group
from twin.cost.collective_options import Option
from twin.description.library import Library


def tree_options(group: Group, library: Library, bytes_: float) -> list[Option]:
    """Return one option per protocol for an all-reduce over more than one node."""
    tree = library.tree
    if tree is None or group.nodes < 2:
        return []
    nodes = group.nodes
    depth = 2.0 * log2(nodes)
    chain = 2.0 * (group.members - 1)
    crossing = tuple(2.0 * bytes_ * min(n, log2(nodes)) for n in group.crossings)
    sent = 2.0 * bytes_ * (nodes - 1) / nodes
    efficiency = tree.network_efficiency if nodes == 2 else tree.many_nodes_efficiency
    piece = min(sqrt(bytes_ * tree.piece_bytes), tree.largest_piece_bytes, bytes_)
    options = []
    for name in library.network_protocols:
        protocol = library.protocols[name]
        share = float(protocol.network_share)
        nic = group.network_rate * efficiency * share
        local = group.local_rate * tree.local_efficiency * share
        wire = max(sent / nic, 2.0 * bytes_ / local if group.members > 1 else 0.0, _uplinks(group, crossing))
        local_hop = protocol.tree_local_hop_seconds + group.local_latency_seconds
        network_hop = protocol.tree_network_hop_seconds + group.far_latency_seconds
        latency = depth * (network_hop + piece / nic) + chain * local_hop
        if group.members > 1:
            latency += chain * piece / local
        options.append(
            Option(
                algorithm="tree",
                protocol=name,
                seconds=protocol.base_seconds + latency + wire,
                startup_seconds=protocol.base_seconds + network_hop,
                wire_seconds=wire,
                local_bytes=2.0 * bytes_ if group.members > 1 else 0.0,
                nic_bytes=sent,
                uplink_bytes=crossing,
            )
        )
    return options


def _uplinks(group: Group, bytes_out: tuple[float, ...]) -> float:
    total = group.machine.network.group_bandwidth_bytes_per_second
    return max(bytes_out, default=0.0) / total if total is not None else 0.0
