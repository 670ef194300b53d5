"""Symmetry folding: which ranks, groups and links have the same future.

An *equitable partition* of the machine as the job uses it, by colour refinement. Three kinds
of vertices: ranks, groups (of every partition) and shared resources (NICs, links, global links).
Colours start from what differs: a rank's device speed and its role, what collectives cost on a group's
placement, a resource's capacity. Then, until nothing splits any more:

* a group's colour takes in the colours of its members and of the resources it loads,
* a resource's colour takes in the colours of the groups that load it,
* a rank's colour takes in the colours of its groups.

Vertices that end with one colour see the same colours through every edge, so they do the same
things at the same times, and one of each is enough. A straggler splits classes; it does not
unfold the machine. Unfolded is the same structure with every vertex a colour of its own.

Colours are combined through 64-bit hashes; with the 10^6 vertices of the largest jobs the
chance that any two different ones collide is below 10^-7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from twin.engine.layout import NOWHERE, Groups, Ints, Relation, by_appearance, spread

Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Edges:
    """Which resources the groups of one axis load, and how: parallel arrays.

    Two edges with the same label carry the same bytes for every collective of the job.
    """

    group: Ints
    resource: Ints
    label: Ints


@dataclass(frozen=True)
class Use:
    """One class of resources as one class of groups uses it.

    On each resource of the class `count` groups of the class put a load with this label.
    """

    resource_class: int
    label: int
    count: int


@dataclass(frozen=True)
class GroupClass:
    """Groups of one partition with the same future."""

    relation: Relation
    pattern: int
    rank_classes: tuple[int, ...]
    uses: tuple[Use, ...]
    representative: int
    """The group that stands for the class."""


@dataclass
class Partition:
    """Classes of ranks, of groups by axis, and of resources."""

    rank_class: Ints
    """(ranks,): class of each rank."""
    representatives: Ints
    """(rank classes,): one rank of each class."""
    groups: Mapping[Relation, list[GroupClass]]
    group_class_of_rank_class: Mapping[Relation, list[int]]
    """NOWHERE for a class of ranks that a partition leaves out."""
    capacity: list[float] = field(default_factory=list)
    """Bytes per second of each class of resources."""
    resource_representatives: list[int] = field(default_factory=list)
    """One resource of each class."""

    @property
    def rank_classes(self) -> int:
        """Number of rank classes."""
        return len(self.representatives)


def fold(
    axes: Mapping[Relation, Groups],
    alike: Mapping[Relation, Ints],
    edges: Mapping[Relation, Edges],
    speed: NDArray[np.float64],
    capacity: NDArray[np.float64],
    role: Ints | None = None,
) -> Partition:
    """Find the coarsest equitable partition.

    `alike[axis]` numbers the placement patterns by what collectives cost on them; `speed` and `role`, the
    number of the program that a rank runs, are (ranks,), `capacity` is (resources,). Resources that
    nothing loads are in no class.
    """
    loaded, edges = _only_loaded(edges, len(capacity))
    capacity = capacity[loaded]
    rank = _compress(speed.view(np.uint64))
    if role is not None and role.any():
        rank = _compress(_combine(rank, role.astype(np.uint64)))
    resource = _compress(capacity.view(np.uint64))
    group = {axis: _compress(alike[axis][a.pattern].astype(np.uint64)) for axis, a in axes.items()}
    before = -1
    while (now := _count(rank, resource, *group.values())) != before:
        before = now
        for axis, a in axes.items():
            columns = [group[axis]]
            if not _is_constant(rank):
                columns.append(_scramble(rank)[a.members].sum(axis=1, dtype=np.uint64))
            e = edges[axis]
            if len(e.group):
                touched = np.zeros(len(a.members), dtype=np.uint64)
                np.add.at(touched, e.group, _scramble(_mix(resource[e.resource], e.label + 2)))
                columns.append(touched)
            group[axis] = _compress(_combine(*columns))
        seen = np.zeros(len(resource), dtype=np.uint64)
        for number, axis in enumerate(axes):
            e = edges[axis]
            marked = _mix(group[axis][e.group], e.label * 8 + number + 3)
            np.add.at(seen, e.resource, _scramble(marked))
        resource = _compress(_combine(resource, seen))
        through = [_through(group[x], a) for x, a in axes.items() if not _is_constant(group[x])]
        rank = _compress(_combine(rank, *through))
    found = _quotient(axes, edges, rank, group, resource, capacity)
    found.resource_representatives = loaded[found.resource_representatives].tolist()
    return found


def _through(colour: Hashes, groups: Groups) -> Hashes:
    """Return the colour of each rank's group; ranks that are in none have a colour of their own."""
    at = groups.group_of_rank
    if at.min(initial=0) > NOWHERE:
        return colour[at]
    return np.where(at == NOWHERE, np.uint64(0), colour[at] + np.uint64(1))


def _only_loaded(edges: Mapping[Relation, Edges], resources: int) -> tuple[Ints, dict[Relation, Edges]]:
    """Resources that some group loads, and the edges with these numbered from 0."""
    is_loaded = np.zeros(resources, dtype=bool)
    for e in edges.values():
        is_loaded[e.resource] = True
    number = np.cumsum(is_loaded) - 1
    renumbered = {axis: replace(e, resource=number[e.resource]) for axis, e in edges.items()}
    return np.flatnonzero(is_loaded), renumbered


def unfolded(
    axes: Mapping[Relation, Groups], edges: Mapping[Relation, Edges], ranks: int, capacity: NDArray[np.float64]
) -> Partition:
    """Make the partition in which everything is a class of its own."""
    group = {axis: np.arange(len(a.members), dtype=np.uint64) for axis, a in axes.items()}
    return _quotient(
        axes, edges, np.arange(ranks, dtype=np.uint64), group, np.arange(len(capacity), dtype=np.uint64), capacity
    )


def _quotient(
    axes: Mapping[Relation, Groups],
    edges: Mapping[Relation, Edges],
    rank: Hashes,
    group: Mapping[Relation, Hashes],
    resource: Hashes,
    capacity: NDArray[np.float64],
) -> Partition:
    rank_class, representatives = by_appearance(rank)
    resource_class, resource_representatives = by_appearance(resource)
    groups: dict[Relation, list[GroupClass]] = {}
    of_rank: dict[Relation, list[int]] = {}
    for axis, a in axes.items():
        e = edges[axis]
        group_class, chosen = by_appearance(group[axis])
        by_resource = _by_representative(e.resource, resource_representatives)
        by_group = _by_representative(e.group, chosen)
        groups[axis] = [
            GroupClass(
                relation=axis,
                pattern=int(a.pattern[g]),
                rank_classes=tuple(np.unique(rank_class[a.members[g]]).tolist()),
                uses=_uses(number, e, by_group[number], by_resource, resource_class, group_class),
                representative=int(g),
            )
            for number, g in enumerate(chosen)
        ]
        own = a.group_of_rank[representatives]
        of_rank[axis] = np.where(own == NOWHERE, NOWHERE, group_class[own]).tolist()
    return Partition(
        rank_class,
        representatives,
        groups,
        of_rank,
        capacity[resource_representatives].tolist(),
        resource_representatives.tolist(),
    )


def _uses(
    number: int, edges: Edges, own: Ints, by_resource: list[Ints], resource_class: Ints, group_class: Ints
) -> tuple[Use, ...]:
    """Uses of one class of groups; `own` are the edge indices of its representative."""
    pairs = {(int(resource_class[edges.resource[i]]), int(edges.label[i])) for i in own}
    uses = []
    for resource, label in sorted(pairs):
        at = by_resource[resource]
        count = int(np.sum((group_class[edges.group[at]] == number) & (edges.label[at] == label)))
        uses.append(Use(resource, label, count))
    return tuple(uses)


def _by_representative(key: Ints, chosen: Ints) -> list[Ints]:
    """For each chosen vertex the indices of its edges."""
    order = np.argsort(key, kind="stable")
    low = np.searchsorted(key[order], chosen, side="left")
    high = np.searchsorted(key[order], chosen, side="right")
    return [order[a:b] for a, b in zip(low, high, strict=True)]


def _compress(colour: Hashes) -> Hashes:
    return by_appearance(colour)[0].astype(np.uint64)


def _count(*colours: Hashes) -> int:
    """Number of colours in all; each column is numbered from 0 without gaps."""
    return sum(int(colour.max()) + 1 for colour in colours if len(colour))


def _scramble(value: NDArray[np.uint64] | Ints) -> Hashes:
    return spread(np.atleast_1d(value).astype(np.uint64))


def _mix(value: NDArray[np.uint64], salt: Ints | int) -> Hashes:
    return _scramble(_scramble(value) + _scramble(np.asarray(salt, dtype=np.int64)))


def _is_constant(colour: Hashes) -> bool:
    """Whether there is one colour only, which tells nothing apart."""
    return not len(colour) or bool((colour == colour[0]).all())


def _combine(*columns: Hashes) -> Hashes:
    """One colour for each different row of these columns."""
    if len(columns) == 1:
        return columns[0]
    mixed = np.zeros_like(columns[0])
    for position, column in enumerate(columns):
        # salted by its place: (a, b) and (b, a) are different
        mixed = _scramble(mixed + _mix(column, position))
    return mixed
