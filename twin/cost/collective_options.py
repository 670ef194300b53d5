"""One way of running a collective: its time alone and what it moves where.

The library's algorithms (`collective_ring`, `collective_tree`, `collective_two_level`) each
return options; `collective` takes the fastest.
"""

from __future__ import annotations

from dataclasses import dataclass

from twin.cost.collective_group import Group, Pattern


@dataclass(frozen=True, slots=True)
class Option:
    """One algorithm with one protocol, for one group alone on the machine."""

    algorithm: str
    protocol: str
    seconds: float
    """Whole time."""
    startup_seconds: float
    """Launch and first hop, contained in `seconds`."""
    wire_seconds: float
    """Time the fullest resource needs for its bytes alone; `seconds` is never less."""
    local_bytes: float
    """Bytes that pass each member inside its node, over all channels."""
    nic_bytes: float
    """Bytes that a node sends, over all NICs the group uses there."""
    uplink_bytes: tuple[float, ...] = ()
    """Bytes that leave each dragonfly group."""


@dataclass(frozen=True, slots=True)
class NodeUse:
    """Use of one resource of a node: `kind` is nic, link or port."""

    kind: str
    index: int
    bytes: float


def node_uses(group: Group, option: Option, pattern: Pattern) -> tuple[NodeUse, ...]:
    """Spread an option's bytes over the NICs and links of a node with this pattern."""
    uses: list[NodeUse] = []
    if option.nic_bytes:
        nics = group.nics[pattern]
        uses += [NodeUse("nic", nic, option.nic_bytes / len(nics)) for nic in nics]
    if option.local_bytes:
        inside = group.channels[pattern]
        width = group.machine.devices_per_node
        for (a, b), share in inside.use:
            index = a if inside.switched else a * width + b
            uses.append(
                NodeUse("port" if inside.switched else "link", index, option.local_bytes * share)
            )
    return tuple(uses)
