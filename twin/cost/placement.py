"""Where the members of a group sit, reduced to what a collective's cost depends on.

Two groups with equal placements cost the same; a placement therefore carries no node
numbers, only which devices the group uses on each of its nodes, in ring order, and which
dragonfly group each of these nodes belongs to (renumbered from 0 in order of appearance).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Placement:
    """The members of one group, node by node.

    `nodes[i]` are the device indices used on the i-th node, in rank order; `switch_groups[i]`
    is that node's dragonfly group, renumbered from 0.
    """

    nodes: tuple[tuple[int, ...], ...]
    switch_groups: tuple[int, ...]

    @classmethod
    def contiguous(cls, ranks: int, devices_per_node: int, group_nodes: int | None = None) -> Placement:
        """Ranks 0 … ranks−1, filling node after node.

        >>> Placement.contiguous(6, 4).nodes
        ((0, 1, 2, 3), (0, 1))
        """
        full, rest = divmod(ranks, devices_per_node)
        nodes = (tuple(range(devices_per_node)),) * full + ((tuple(range(rest)),) if rest else ())
        return cls(nodes, tuple(i // group_nodes if group_nodes else 0 for i in range(len(nodes))))

    @cached_property
    def ranks(self) -> int:
        """Number of members."""
        return sum(map(len, self.nodes))

    @property
    def node_count(self) -> int:
        """Number of nodes touched."""
        return len(self.nodes)
