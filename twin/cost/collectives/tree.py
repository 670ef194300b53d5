"""Double binary tree between nodes with a chain inside each node: all-reduce.

Each of the two trees carries half of the buffer up (reduced) and down again; a node is a leaf
in one and has two children in the other, so it sends about 2·M·(N−1)/N bytes, as in a ring, but
the way of a piece is only 2·log₂ N network hops. The message is cut into pieces that follow one
another, and the way of the first overlaps with the transfer of the others, as in the ring:

    way = 2(g−1)·hop + 2L·hop + w·piece/B      with L = log₂ N levels
    T   = base + √(way² + (bytes/B)²)

A node on level l waits for the later of two subtrees of depth l−1, so that delays add up with
the level: w = L(L+1) for Simple (found from the measured tables, 2 to 4096 nodes: L² fits, L
does not). LL does not synchronise per piece: w = 2L.

Longer messages have longer pieces, √(M · piece₀) up to a limit: a piece that grows as the
square root makes the sum of a way and a start-up per piece smallest, and is what the library's
halving rule for its pieces approximates.
"""

from __future__ import annotations

from math import hypot, log2, sqrt

import numpy as np

from twin.cost.algorithms import register
from twin.cost.collective_group import Group
from twin.cost.collective_options import Option
from twin.description.library import CollectiveKind, Library

MIN_NODES = 2
"""NCCL takes trees from two nodes on (its authors in github NVIDIA/nccl issue 946)."""


@register("tree")
def tree_options(group: Group, library: Library, kind: CollectiveKind, bytes_: float) -> list[Option]:
    """Return one option per protocol for an all-reduce over more than one node."""
    tree = library.tree
    if kind != "all_reduce" or tree is None or group.nodes < (tree.least_nodes or MIN_NODES):
        return []
    nodes = group.nodes
    depth = 2.0 * log2(nodes)
    chain = 2.0 * (group.members - 1)
    sent = 2.0 * bytes_ * (nodes - 1) / nodes
    crossing = _crossing(group, bytes_)
    efficiency = float(tree.network_efficiency if nodes == 2 else tree.many_nodes_efficiency)
    if tree.shared_nic_efficiency is not None and any(len(p) > group.nics_of(p) for p in group.patterns):
        efficiency = min(efficiency, float(tree.shared_nic_efficiency))
    piece = min(sqrt(bytes_ * tree.piece_bytes), tree.largest_piece_bytes, bytes_)
    options = []
    for name in library.network_protocols:
        protocol = library.protocols[name]
        share = float(protocol.tree_network_share)
        nic = group.network_rate * efficiency * share
        local = group.local_rate * tree.local_efficiency * share
        wire = max(sent / nic, 2.0 * bytes_ / local if group.members > 1 else 0.0, group.uplink_seconds(crossing))
        local_hop = protocol.tree_local_hop_seconds + group.local_latency_seconds
        network_hop = protocol.tree_network_hop_seconds + group.far_latency_seconds
        waits = depth * (depth / 2 + 1) / 2 if name == "Simple" else depth
        latency = depth * network_hop + waits * piece / nic + chain * local_hop
        options.append(
            Option(
                algorithm="tree",
                protocol=name,
                seconds=protocol.base_seconds + hypot(latency, wire),
                startup_seconds=float(protocol.base_seconds),  # the first hop is one of those that overlap
                wire_seconds=wire,
                local_bytes=2.0 * bytes_ if group.members > 1 else 0.0,
                nic_bytes=sent,
                uplink_bytes=crossing,
            )
        )
    return options


def _crossing(group: Group, bytes_: float) -> tuple[float, ...]:
    """Bytes that leave each dragonfly group.

    Where each group is a block of consecutive nodes, what a node sends; otherwise what the edges
    between groups carry: half of the buffer of each tree in each direction.
    """
    if max(group.crossings, default=0) <= 1:
        return tuple(2.0 * bytes_ * (group.nodes - 1) / group.nodes * n for n in group.crossings)
    leaving = tree_crossings(group.placement.switch_groups)
    return tuple(bytes_ / 2.0 * n for n in leaving)


def tree_crossings(switch_groups: tuple[int, ...]) -> tuple[int, ...]:
    """Count the edges of both trees over the nodes that leave each dragonfly group.

    In the first tree nodes hang on neighbours at the distance of their lowest set bit; the second
    is the first with the order of the nodes reversed.

    >>> tree_crossings((0, 1, 0, 1))
    (4, 4)
    """
    group = np.asarray(switch_groups)
    nodes = len(group)
    child = np.arange(1, nodes)
    bit = child & -child
    above = (child ^ bit) | (bit << 1)
    parent = np.where(above < nodes, above, child ^ bit)
    leaving = np.zeros(int(group.max()) + 1, dtype=np.int64)
    for order in (group, group[::-1]):
        ends = order[child], order[parent]
        cross = ends[0] != ends[1]
        for side in ends:
            leaving += np.bincount(side[cross], minlength=len(leaving))
    return tuple(leaving.tolist())
