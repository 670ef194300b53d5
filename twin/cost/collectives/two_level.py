"""Two levels: point to point between nodes, the vendor's ring inside each node (PCCL).

With g members on each of N nodes, M bytes in all. An all-gather (a reduce-scatter is the same
backwards, an all-reduce one after the other):

1. each member gathers over the nodes, all g members at once on all NICs: M/g bytes each, so M
   past the node; log₂ N steps by recursive doubling, or N−1 steps of a ring, whichever is faster;
2. the node's members gather among themselves with the vendor library's ring: M;
3. a kernel puts the pieces in order: M read and written in device memory.

After arXiv 2504.18658. Recursive doubling sends most of the bytes between far nodes: half of the
buffer over half of the machine, which the dragonfly's global links must carry.
"""

from __future__ import annotations

from math import ceil, hypot, log2

import numpy as np

from twin.cost.algorithms import register
from twin.cost.collective_group import Group, look
from twin.cost.collective_options import Option
from twin.cost.collectives.ring import ring_options
from twin.cost.placement import Placement
from twin.description.library import CollectiveKind, Library

KINDS = ("all_gather", "reduce_scatter", "all_reduce")


@register("two-level")
def two_level_options(group: Group, library: Library, kind: CollectiveKind, bytes_: float) -> list[Option]:
    """Return the ring and the recursive option for a group on several nodes."""
    if library.two_level is None or group.nodes < 2 or kind not in KINDS:
        return []
    if kind == "all_reduce":
        halves = zip(
            two_level_options(group, library, "reduce_scatter", bytes_),
            two_level_options(group, library, "all_gather", bytes_),
            strict=True,
        )
        return [_after(first, second) for first, second in halves]
    inside = _inside(group, library, kind, bytes_)
    return [_across(group, library, kind, bytes_, inside, recursive=r) for r in (False, True)]


def _inside(group: Group, library: Library, kind: CollectiveKind, bytes_: float) -> Option | None:
    """Time the vendor's collective inside the fullest node."""
    if group.members < 2:
        return None
    fullest = max(group.patterns, key=len)
    node = look(group.machine, Placement((fullest,), (0,)))
    return min(ring_options(node, library, kind, bytes_), key=lambda o: o.seconds)


def _across(
    group: Group, library: Library, kind: CollectiveKind, bytes_: float, inside: Option | None, *, recursive: bool
) -> Option:
    level = library.two_level
    assert level is not None
    nodes = group.nodes
    sent = bytes_ * (nodes - 1) / nodes
    steps = ceil(log2(nodes)) if recursive else nodes - 1
    distance = group.far_latency_seconds if recursive else group.network_latency_seconds
    hop = level.network_step_seconds + distance
    crossing = (
        recursive_crossings(group.placement.switch_groups, bytes_)
        if recursive and group.crossings
        else tuple(sent * n for n in group.crossings)
    )
    total = group.machine.network.group_bandwidth_bytes_per_second
    uplinks = max(crossing, default=0.0) / total if total is not None else 0.0
    wire = max(sent / (group.network_rate * level.network_efficiency.of(kind)), uplinks)
    # A ring's steps are posted ahead of the transfers; a doubling step needs the one before it.
    network = steps * hop + wire if recursive else hypot(steps * hop, wire)
    first = hop if recursive else 0.0
    device = group.machine.device
    copied = 2.0 * bytes_ if group.members > 1 else 0.0
    copy = copied / (device.memory_bandwidth_bytes_per_second * level.copy_efficiency)
    local = inside.seconds if inside else 0.0
    return Option(
        algorithm="two-level recursive" if recursive else "two-level ring",
        protocol="Simple",
        seconds=level.base_seconds + network + copy + local,
        startup_seconds=level.base_seconds + first + (inside.startup_seconds if inside else 0.0),
        wire_seconds=wire + (inside.wire_seconds if inside else 0.0),
        local_bytes=inside.local_bytes if inside else 0.0,
        nic_bytes=sent,
        uplink_bytes=crossing,
    )


def recursive_crossings(switch_groups: tuple[int, ...], bytes_: float) -> tuple[float, ...]:
    """Bytes that leave each dragonfly group in a recursive doubling over the nodes.

    Step s exchanges M·2ˢ/N bytes between nodes whose positions differ in bit s.

    >>> recursive_crossings((0, 0, 1, 1), 8.0)
    (8.0, 8.0)
    """
    group = np.asarray(switch_groups)
    nodes = len(group)
    position = np.arange(nodes)
    out = np.zeros(int(group.max()) + 1)
    for step in range(ceil(log2(nodes))):
        partner = position ^ (1 << step)
        valid = partner < nodes
        leaving = group[valid][group[valid] != group[partner[valid]]]
        out += np.bincount(leaving, minlength=len(out)) * (bytes_ * (1 << step) / nodes)
    return tuple(out.tolist())


def _after(first: Option, second: Option) -> Option:
    return Option(
        algorithm=first.algorithm,
        protocol=first.protocol,
        seconds=first.seconds + second.seconds,
        startup_seconds=first.startup_seconds,
        wire_seconds=first.wire_seconds + second.wire_seconds,
        local_bytes=first.local_bytes + second.local_bytes,
        nic_bytes=first.nic_bytes + second.nic_bytes,
        uplink_bytes=tuple(a + b for a, b in zip(first.uplink_bytes, second.uplink_bytes, strict=True)),
    )
