"""One way of running a collective: its time alone and what it moves where.

Algorithms (`twin.cost.collectives`) each return options; `collective` takes the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from twin.cost.collective_group import Group, Pattern
from twin.description.library import CollectiveKind, Library


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
    """Bytes that a node sends, over all NICs the group uses there; the most, where nodes differ."""
    uplink_bytes: tuple[float, ...] = ()
    """Bytes that leave each dragonfly group."""
    core_seconds: float = 0.0
    """Time of a CPU core that each member needs, where collectives run on the cores."""
    nic_bytes_by_pattern: Mapping[Pattern, float] | None = None
    """By the devices of a node, where nodes that are filled otherwise send other amounts."""


@dataclass(frozen=True, slots=True)
class NodeUse:
    """Use of one resource of a node: `kind` is nic, link, port or cores."""

    kind: str
    index: int
    bytes: float
    """Of cores: seconds of one core."""


def node_uses(group: Group, option: Option, pattern: Pattern) -> tuple[NodeUse, ...]:
    """Spread an option's bytes over the NICs and links of a node with this pattern."""
    uses: list[NodeUse] = []
    by_pattern = option.nic_bytes_by_pattern
    if sent := option.nic_bytes if by_pattern is None else by_pattern[pattern]:
        nics = group.nics[pattern]
        uses += [NodeUse("nic", nic, sent / len(nics)) for nic in nics]
    if option.local_bytes:
        inside = group.channels[pattern]
        width = group.machine.devices_per_node
        for (a, b), share in inside.use:
            index = a if inside.switched else a * width + b
            uses.append(NodeUse("port" if inside.switched else "link", index, option.local_bytes * share))
    if option.core_seconds and group.machine.cores is not None:
        uses.append(NodeUse("cores", 0, option.core_seconds * len(pattern)))
    return tuple(uses)


def on_cores(group: Group, option: Option) -> Option:
    """Let an option last at least as long as the cores that its members share need for it."""
    cores = group.machine.cores
    if cores is None or not option.core_seconds:
        return option
    members = group.ranks if cores.shared_by == "machine" else group.members
    wire = max(option.wire_seconds, option.core_seconds * members / cores.count)
    return replace(option, wire_seconds=wire, seconds=max(option.seconds, option.startup_seconds + wire))


def core_seconds(
    library: Library, kind: CollectiveKind, local_bytes: float, far_bytes: float, messages: int, *, exchange: bool
) -> float:
    """Return the time of a core that a member needs for a call, for what it moves and what it adds.

    `exchange`: its messages are posted one by one, not by a collective of the library's own.
    """
    work = library.host_work
    if work is None:
        return 0.0
    effort = 1.0 if work.effort is None else work.effort.of(kind)
    seconds = effort * (local_bytes / work.local_bytes_per_second + far_bytes / work.network_bytes_per_second)
    if kind in ("all_reduce", "reduce_scatter"):
        seconds += (local_bytes + far_bytes) / work.reduce_bytes_per_second
    return float(work.posting_seconds(messages, exchange=exchange) + seconds)


def posted(group: Group, library: Library, kind: CollectiveKind, part_bytes: float) -> bool:
    """Tell whether the runtime posts an exchange message by message, each member sending each other one its part.

    Else gloo's all-to-all does it: within a host, unless all would be sent the same and would have to be copied, or
    of few bytes (`runtime.parallel.collectives`). Rings of more than two members are always posted.
    """
    if library.direct is None or (kind == "shift" and group.ranks > 2):
        return True
    few = float(library.direct.largest_bytes)
    if group.nodes > 1:
        return part_bytes * (1 if kind == "shift" else group.ranks) > few
    return kind in ("all_gather", "all_reduce") and group.ranks > 2 and part_bytes > few
