"""Reduction inside the node's switch (NVLS): all-reduce on one node.

Each device sends and receives its buffer once: T = base + bytes / (port · efficiency).
"""

from __future__ import annotations

from twin.cost.algorithms import register
from twin.cost.collective_group import Group
from twin.cost.collective_options import Option
from twin.description.library import CollectiveKind, Library


@register("in-switch")
def in_switch_options(group: Group, library: Library, kind: CollectiveKind, bytes_: float) -> list[Option]:
    """Return the one option of a group on one node, if it is large enough for the library to use the switch."""
    switch, port = library.in_switch, group.machine.fabric.port_bandwidth_bytes_per_second
    if kind != "all_reduce" or switch is None or port is None or group.nodes > 1 or group.ranks < switch.devices:
        return []
    wire = bytes_ / (port * switch.efficiency)
    base = float(switch.base_seconds)
    return [Option("in-switch", "Simple", base + wire, base, wire, float(bytes_), 0.0)]
