"""Which communicators slow no compute, and are not slowed by it: none or few of the device's units do their work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twin.cost.tiers import TIER_KINDS
from twin.description.library import CollectiveKind, Library
from twin.engine.layout import Groups, Relation
from twin.engine.program import Call
from twin.schedule.communicator import Communicator

MESSAGES: frozenset[CollectiveKind] = frozenset({"shift", "send", "receive", "exchange"})


def quiet_communicators(
    calls: Sequence[Call],
    library: Library,
    communicators: Mapping[str, Communicator],
    groups: Mapping[Relation, Groups],
) -> frozenset[str]:
    """Name those that carry nothing but work of copy engines, the host and its drives, or few-channel messages.

    Few channels carry a message that one rank of a node sends to another node, where the library says so; of a ring
    with two members on a node some go by all channels.
    """
    loud = set[str]()
    for name, kind, _ in calls:
        few = library.few_channel_messages and kind in MESSAGES and _apart(groups[communicators[name].partition])
        if kind not in TIER_KINDS and not few:
            loud.add(name)
    return frozenset(name for name, _, _ in calls) - loud


def _apart(groups: Groups) -> bool:
    """Whether no two members of a group are on one node."""
    return all(len(devices) == 1 for placement in groups.placements for devices in placement.nodes)
