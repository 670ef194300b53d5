"""Ranks on nodes, and the groups of each communicator with their placement.

Ranks fill nodes in order (rank r sits on node r // devices, device r % devices), which packs
x groups into a node first, then y, z and data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twin.cost.placement import Placement
from twin.description.grid import AXES, Axis, Grid
from twin.description.machine import Machine

Ints = NDArray[np.int64]
Relation = Axis | Literal["core"]
"""What brings ranks together: the groups of an axis, or the cores that they share."""


@dataclass(frozen=True)
class Layout:
    """Where each rank sits: node and device index, arrays over ranks."""

    node: Ints
    device: Ints
    switch_group: Ints
    """Dragonfly group of each rank's node."""
    devices_per_node: int

    @classmethod
    def contiguous(cls, machine: Machine, ranks: int) -> Layout:
        """Fill node after node."""
        rank = np.arange(ranks, dtype=np.int64)
        node = rank // machine.devices_per_node
        per_group = machine.network.group_nodes or machine.nodes
        return cls(
            node, rank % machine.devices_per_node, node // per_group, machine.devices_per_node
        )


@dataclass(frozen=True)
class AxisGroups:
    """The groups of one axis: members, and which placement pattern each group has."""

    axis: Relation
    members: Ints
    """(groups, size): the ranks of each group, ascending."""
    group_of_rank: Ints
    pattern: Ints
    """(groups,): index into `placements`."""
    placements: tuple[Placement, ...]


def axis_members(grid: Grid, axis: Axis) -> Ints:
    """Return the ranks of every group of an axis, shape (groups, size)."""
    ranks = np.arange(grid.ranks, dtype=np.int64).reshape(grid.sizes)
    moved = np.moveaxis(ranks, AXES.index(axis), -1)
    return np.ascontiguousarray(moved.reshape(-1, grid.size(axis)))


def groups_of(grid: Grid, axis: Axis, layout: Layout) -> AxisGroups:
    """Find the groups of an axis and reduce their placements to the distinct patterns."""
    members = axis_members(grid, axis)
    group_of_rank = np.empty(grid.ranks, dtype=np.int64)
    group_of_rank[members.ravel()] = np.repeat(np.arange(len(members)), members.shape[1])
    # A pattern is which nodes are equal, which devices are used, which switch groups are equal.
    node = _renumber(layout.node[members])
    group = _renumber(layout.switch_group[members])
    key = (group * (node.max() + 1) + node) * layout.devices_per_node + layout.device[members]
    patterns, first, inverse = np.unique(key, axis=0, return_index=True, return_inverse=True)
    del patterns
    placements = tuple(_placement(node[i], layout.device[members[i]], group[i]) for i in first)
    return AxisGroups(
        axis, members, group_of_rank, inverse.reshape(-1).astype(np.int64), placements
    )


def each_alone(ranks: int) -> AxisGroups:
    """Make every rank a group of its own, which may load the cores that it shares."""
    own = np.arange(ranks, dtype=np.int64)
    return AxisGroups("core", own[:, None], own, np.zeros_like(own), ())


def _renumber(rows: Ints) -> Ints:
    """Number the ascending values of each row 0, 1, … in order of appearance."""
    steps = np.zeros_like(rows)
    steps[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return steps.cumsum(axis=1)


def _placement(node: Ints, device: Ints, group: Ints) -> Placement:
    starts = np.flatnonzero(np.diff(node, prepend=-1))
    devices = np.split(device, starts[1:])
    return Placement(
        nodes=_interned(tuple(part.tolist()) for part in devices),
        switch_groups=tuple(group[starts].tolist()),
    )


def _interned(parts: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Share equal tuples: thousands of nodes use the same few sets of devices."""
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    return tuple(known.setdefault(part, part) for part in parts)
