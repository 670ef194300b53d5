"""Direct exchanges: every member sends each other one its part, all at once.

With p members, of which a on the busiest node, and parts of b bytes (M/p of an all-gather or
reduce-scatter, the whole buffer of an all-reduce):

    a member moves    (a−1)·b inside its node, (p−a)·b to other nodes
    a node sends      a·(p−a)·b through its NICs
    T = base + (p−1) messages + the slower of both

One start-up instead of p−1 steps, for more bytes: between nodes of several members each, a·(p−a)·b
against (p−1)·b of a ring.
"""

from __future__ import annotations

from twin.cost.algorithms import register
from twin.cost.collective_group import Group
from twin.cost.collective_options import Option, core_seconds, posted
from twin.description.library import CollectiveKind, Library


@register("direct", alone=True)
def direct_options(group: Group, library: Library, kind: CollectiveKind, bytes_: float) -> list[Option]:
    """Return the exchange, if that is how this collective is done."""
    direct = library.direct
    if direct is None:
        return []
    small, pair = bytes_ <= direct.largest_bytes, group.ranks == 2
    done: dict[CollectiveKind, bool] = {
        "reduce_scatter": True,
        "all_gather": pair or small or group.nodes == 1,
        "all_reduce": small and not pair,
    }
    if not done.get(kind, False):
        return []
    part = float(bytes_) if kind == "all_reduce" else bytes_ / group.ranks
    here, there = group.members - 1, group.ranks - group.members
    network = group.nodes > 1
    local_bytes, far_bytes = here * part, there * part
    nic_bytes = group.members * far_bytes
    local = local_bytes / (group.local_rate * direct.local_efficiency.of(kind))
    wire = nic_bytes / (group.network_rate * direct.network_efficiency.of(kind)) if network else 0.0
    hop = group.network_latency_seconds if network else group.local_latency_seconds
    messages = here * direct.message_seconds + there * direct.network_message_seconds
    startup = direct.base_seconds + hop + messages
    moving = max(local, wire)
    return [
        Option(
            algorithm="direct",
            protocol="Simple",
            seconds=startup + moving,
            startup_seconds=startup,
            wire_seconds=moving,
            local_bytes=local_bytes,
            nic_bytes=nic_bytes,
            core_seconds=core_seconds(
                library, kind, local_bytes, far_bytes, here + there, exchange=posted(group, library, kind, part)
            ),
        )
    ]
