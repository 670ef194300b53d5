"""Which rank of which other host keeps a rank's part."""

from __future__ import annotations

from collections.abc import Sequence


def keepers(hosts: Sequence[str]) -> list[int | None]:
    """Return for each rank the rank that keeps its part too: on the next host, in the order of first ranks.

    `hosts` names the host of each rank. None where there is one host only. Ranks of a host are spread
    over those of the next one.

    >>> keepers(["a", "a", "b", "b"]), keepers(["a", "a", "b"]), keepers(["a", "a"])
    ([2, 3, 0, 1], [2, 2, 0], [None, None])
    """
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    if len(members) == 1:
        return [None] * len(hosts)
    names = list(members)
    after = {name: names[(i + 1) % len(names)] for i, name in enumerate(names)}
    found: list[int | None] = []
    for rank, host in enumerate(hosts):
        there = members[after[host]]
        found.append(there[members[host].index(rank) % len(there)])
    return found


def leaders(hosts: Sequence[str]) -> set[int]:
    """Return the first rank of each host.

    >>> sorted(leaders(["a", "a", "b"]))
    [0, 2]
    """
    return {hosts.index(host) for host in hosts}
