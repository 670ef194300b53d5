"""Where the nodes of a job sit among the dragonfly groups of its machine.

Ranks always fill nodes in order; what a placement decides is which group each node is in:

* `contiguous`: one group after the other is filled, which leaves the fewest groups to cross.
* `{groups: 8, order: blocks}`: the nodes are spread over so many groups, each group a block of
  consecutive nodes.
* `{groups: 8, order: cyclic}`: dealt out one by one, so that neighbours are in different groups.
"""

from __future__ import annotations

from typing import Literal

from twin.description.machine import Machine
from twin.description.model import Positive
from twin.description.problems import Problem
from twin.description.spec import Spec


class Scattered(Spec):
    """Nodes spread evenly over several dragonfly groups."""

    groups: Positive
    """Dragonfly groups that the job's nodes are spread over."""
    order: Literal["blocks", "cyclic"] = "blocks"
    """blocks: consecutive nodes share a group; cyclic: node i is in group i mod groups."""


PlacementChoice = Literal["contiguous"] | Scattered


def nodes_used(machine: Machine, ranks: int) -> int:
    """Nodes that so many ranks fill, the last one perhaps in part."""
    return -(-ranks // machine.devices_per_node)


def groups_used(machine: Machine, ranks: int, placement: PlacementChoice) -> int:
    """Dragonfly groups that the job's nodes are in; 1 on a machine without groups."""
    if placement != "contiguous":
        return placement.groups
    size = machine.network.group_nodes
    return -(-nodes_used(machine, ranks) // size) if size else 1


def check_placement(machine: Machine, ranks: int, placement: PlacementChoice) -> list[Problem]:
    """Return what keeps the machine from placing a job like this."""
    if placement == "contiguous":
        return []
    size, groups, nodes = machine.network.group_nodes, placement.groups, nodes_used(machine, ranks)
    path = "placement.groups"
    if size is None:
        remedy = f"{machine.name} has no dragonfly groups; leave placement at contiguous"
        return [Problem("placement", remedy)]
    if groups > nodes:
        remedy = f"{ranks:,} ranks fill {nodes:,} nodes; use at most that many groups"
        return [Problem(path, remedy, groups)]
    if -(-nodes // groups) > size:
        remedy = f"a group of {machine.name} has {size} nodes; {nodes:,} nodes need at least {-(-nodes // size)} groups"
        return [Problem(path, remedy, groups)]
    whole, rest = divmod(machine.nodes, size)
    # the machine's last, smaller group will do where the job puts fewer nodes
    fits_last = rest >= nodes // groups and (nodes % groups == 0 or groups > nodes % groups)
    there = whole + (1 if rest and fits_last else 0)
    if groups > there:
        remedy = f"{machine.name} has {there} groups with room for so many nodes each; use at most that many"
        return [Problem(path, remedy, groups)]
    return []
