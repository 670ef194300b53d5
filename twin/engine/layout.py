"""Ranks on nodes, and the groups of each partition with their placement.

Ranks fill nodes in order (rank r sits on node r // devices, device r % devices), which packs
groups of the innermost axis into a node first. In which dragonfly group a node is, the job's
placement decides; nothing but what crosses groups depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from twin.cost.placement import Placement
from twin.description.job import Job
from twin.description.machine import Machine

Ints = NDArray[np.int64]
Relation = str
"""What brings ranks together: a partition that communicators run over, or the cores that they share."""
CORES: Relation = "core"
NOWHERE = -1
"""Group of a rank that a partition leaves out."""


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
        return cls(node, rank % machine.devices_per_node, node // per_group, machine.devices_per_node)

    @classmethod
    def of(cls, job: Job) -> Layout:
        """Place a job's nodes in dragonfly groups as it asks."""
        filled = cls.contiguous(job.machine, job.ranks)
        placement = job.placement
        if placement == "contiguous":
            return filled
        nodes = int(filled.node[-1]) + 1
        group = (
            filled.node % placement.groups if placement.order == "cyclic" else filled.node * placement.groups // nodes
        )
        return replace(filled, switch_group=group)


@dataclass(frozen=True)
class Groups:
    """The groups of one partition: members, and which placement pattern each group has."""

    relation: Relation
    members: Ints
    """(groups, size): the ranks of each group, ascending."""
    group_of_rank: Ints
    """(ranks,): NOWHERE for ranks that are in none."""
    pattern: Ints
    """(groups,): index into `placements`."""
    placements: tuple[Placement, ...]


def groups_of(members: Ints, relation: Relation, layout: Layout) -> Groups:
    """Reduce the placements of a partition's groups, (groups, size), to the distinct patterns."""
    group_of_rank = np.full(len(layout.node), NOWHERE, dtype=np.int64)
    group_of_rank[members.ravel()] = np.repeat(np.arange(len(members)), members.shape[1])
    # A pattern is which nodes are equal, which devices are used, which switch groups are equal.
    node = _renumber(layout.node[members])
    group = _by_first(layout.switch_group[members])
    key = (group * (node.max() + 1) + node) * layout.devices_per_node + layout.device[members]
    pattern, first = distinct_rows(key)
    placements = tuple(_placement(node[i], layout.device[members[i]], group[i]) for i in first)
    return Groups(relation, members, group_of_rank, pattern, placements)


def distinct_rows(rows: Ints) -> tuple[Ints, Ints]:
    """Number equal rows alike, in order of appearance; and the first row of each number.

    Rows are compared by a 64-bit hash of each: a sum with scrambled weights.

    >>> distinct_rows(np.array([[3, 4], [1, 2], [3, 4]]))
    (array([0, 1, 0]), array([0, 1]))
    """
    weights = spread(np.arange(rows.shape[1], dtype=np.uint64)) | np.uint64(1)
    sums = (rows.astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64)
    return by_appearance(sums)


def spread(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread integers over 64 bits (the finaliser of SplitMix64, public domain)."""
    x = value + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def by_appearance(values: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Number values 0, 1, … in order of their first appearance; and where each appears first.

    >>> by_appearance(np.array([7, 7, 2, 7], dtype=np.uint64))
    (array([0, 0, 1, 0]), array([0, 2]))
    """
    if len(values) and (values == values[0]).all():  # the common case, at a fraction of the cost
        return np.zeros(len(values), dtype=np.int64), np.zeros(1, dtype=np.int64)
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return number[inverse].astype(np.int64), first[order].astype(np.int64)


def each_alone(ranks: int) -> Groups:
    """Make every rank a group of its own, which may load the cores that it shares."""
    own = np.arange(ranks, dtype=np.int64)
    return Groups(CORES, own[:, None], own, np.zeros_like(own), ())


def _renumber(rows: Ints) -> Ints:
    """Number the ascending values of each row 0, 1, … in order of appearance."""
    steps = np.zeros_like(rows)
    steps[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return steps.cumsum(axis=1)


def _by_first(rows: Ints) -> Ints:
    """Number the values of each row 0, 1, … in order of first appearance; a value may come back.

    >>> _by_first(np.array([[5, 2, 5, 0]]))
    array([[0, 1, 0, 2]])
    """
    if not np.any(rows[:, 1:] < rows[:, :-1]):
        return _renumber(rows)
    count, size = rows.shape
    row, column = np.repeat(np.arange(count), size), np.tile(np.arange(size), count)
    first = np.full((count, int(rows.max()) + 1), size, dtype=np.int64)
    np.minimum.at(first, (row, rows.ravel()), column)
    order = np.argsort(first, axis=1, kind="stable")
    number = np.empty_like(order)
    np.put_along_axis(number, order, np.arange(order.shape[1])[None, :], axis=1)
    return np.take_along_axis(number, rows, axis=1)


def _placement(node: Ints, device: Ints, group: Ints) -> Placement:
    starts = np.flatnonzero(np.diff(node, prepend=-1))
    devices, bounds = device.tolist(), [*starts.tolist(), len(device)]
    return Placement(
        nodes=_interned(tuple(devices[a:b]) for a, b in pairwise(bounds)), switch_groups=tuple(group[starts].tolist())
    )


def _interned(parts: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Share equal tuples: thousands of nodes use the same few sets of devices."""
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    return tuple(known.setdefault(part, part) for part in parts)
