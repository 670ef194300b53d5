"""The partition of ranks is equitable, fine enough, and not finer than it must be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.groups import along
from tests.profiles import examples
from twin.description.load import load_machine
from twin.engine.layout import Groups, Layout
from twin.engine.symmetry import Edges, Partition, fold, unfolded
from twin.strategies.four_d.grid import AXES, Grid

repeatable = examples(0.8, derandomize=True)
FRONTIER = load_machine("frontier")
NICS = 4


@st.composite
def machines_in_use(draw: st.DrawFn):
    """Groups of a random grid on Frontier's nodes, random loads on its NICs, random speeds."""
    grid = Grid(**{axis: draw(st.integers(1, 5)) for axis in AXES})
    layout = Layout.contiguous(FRONTIER, grid.ranks)
    axes = {axis: along(grid, axis, layout) for axis in AXES if grid.size(axis) > 1}
    nodes = int(layout.node.max()) + 1
    edges = {}
    for number, (axis, groups) in enumerate(axes.items()):
        rows = []
        for group, members in enumerate(groups.members):
            placed = groups.placements[groups.pattern[group]]
            if placed.node_count > 1:  # each node's NICs, with a label by axis
                used = {(layout.node[r], layout.device[r] // 2) for r in members}
                rows += [(group, node * NICS + nic, number) for node, nic in sorted(used)]
        column = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        edges[axis] = Edges(column[0], column[1], column[2])
    speed = np.ones(grid.ranks)
    for rank in draw(st.lists(st.integers(0, grid.ranks - 1), max_size=3)):
        speed[rank] = draw(st.sampled_from([1.0, 1.5, 2.0]))
    capacity = np.full(nodes * NICS, 25.0)
    for nic in draw(st.lists(st.integers(0, len(capacity) - 1), max_size=2)):
        capacity[nic] = 12.5
    alike = by_pattern(axes) if draw(st.booleans()) else whole_machine_alike(axes)
    return axes, alike, edges, speed, capacity


def by_pattern(axes: dict[str, Groups]) -> dict[str, np.ndarray]:
    """Collectives cost something else on every placement."""
    return {axis: np.arange(len(groups.placements)) for axis, groups in axes.items()}


def whole_machine_alike(axes: dict[str, Groups]) -> dict[str, np.ndarray]:
    """Collectives cost the same on every placement."""
    return {axis: np.zeros(len(g.placements), dtype=np.int64) for axis, g in axes.items()}


def group_classes(partition: Partition, axis: str, groups: Groups) -> list[int]:
    """Class of every group, as each of its members sees it (which must be one)."""
    of_rank = np.array(partition.group_class_of_rank_class[axis])[partition.rank_class]
    seen = [set(of_rank[row].tolist()) for row in groups.members]
    assert all(len(classes) == 1 for classes in seen)
    return [classes.pop() for classes in seen]


@given(used=machines_in_use())
@repeatable
def test_the_partition_is_equitable(used) -> None:
    """Equal classes have equal speeds, and see equal classes through every axis and every NIC."""
    axes, alike, edges, speed, capacity = used
    partition = fold(axes, alike, edges, speed, capacity)
    for number, first in enumerate(partition.representatives):
        assert partition.rank_class[first] == number
        assert np.all(speed[partition.rank_class == number] == speed[first])
    for axis, groups in axes.items():
        classes = group_classes(partition, axis, groups)
        made = partition.groups[axis]
        for group, row in enumerate(groups.members):
            own = made[classes[group]]
            assert alike[axis][groups.pattern[group]] == alike[axis][own.pattern]
            counts = np.bincount(partition.rank_class[row], minlength=partition.rank_classes)
            first = np.bincount(
                partition.rank_class[groups.members[own.representative]], minlength=partition.rank_classes
            )
            assert np.array_equal(counts, first)
            assert own.rank_classes == tuple(np.flatnonzero(counts).tolist())


@given(used=machines_in_use())
@repeatable
def test_folded_links_carry_what_real_ones_do(used) -> None:
    """For each group, the loads on its links: the same multiset folded and written out.

    A load is (capacity of the link, label, how many groups of the class put it there).
    """
    axes, alike, edges, speed, capacity = used
    partition = fold(axes, alike, edges, speed, capacity)
    for axis, groups in axes.items():
        classes = np.array(group_classes(partition, axis, groups))
        e = edges[axis]
        for group in range(len(groups.members)):
            expected = set()
            for resource, label in zip(e.resource[e.group == group], e.label[e.group == group], strict=True):
                same = (e.resource == resource) & (e.label == label)
                count = int(np.sum(classes[e.group[same]] == classes[group]))
                expected.add((float(capacity[resource]), int(label), count))
            uses = partition.groups[axis][classes[group]].uses
            found = {(partition.capacity[u.resource_class], u.label, u.count) for u in uses}
            assert found == expected


@given(used=machines_in_use())
@repeatable
def test_unfolded_is_everything_by_itself(used) -> None:
    axes, _, edges, speed, capacity = used
    partition = unfolded(axes, edges, len(speed), capacity)
    assert partition.rank_class.tolist() == list(range(len(speed)))
    assert partition.capacity == capacity.tolist()
    for axis, groups in axes.items():
        assert [g.rank_classes for g in partition.groups[axis]] == [tuple(m) for m in groups.members.tolist()]
        assert all(use.count == 1 for g in partition.groups[axis] for use in g.uses)


def folded_grid(grid: Grid, speed: np.ndarray) -> Partition:
    layout = Layout.contiguous(FRONTIER, grid.ranks)
    axes = {axis: along(grid, axis, layout) for axis in AXES if grid.size(axis) > 1}
    empty = np.zeros(0, dtype=np.int64)
    edges = dict.fromkeys(axes, Edges(empty, empty, empty))
    return fold(axes, by_pattern(axes), edges, speed, np.zeros(0))


@pytest.mark.parametrize("sizes", [(2, 2, 2, 1), (4, 4, 2, 2), (8, 8, 8, 8)], ids=str)
def test_a_straggler_splits_ranks_by_how_they_meet_it(sizes) -> None:
    """Without links, and with equal placements, the axes on which a rank differs decide: 2^axes."""
    grid = Grid(**dict(zip(AXES, sizes, strict=True)))
    speed = np.ones(grid.ranks)
    speed[grid.ranks // 3] = 1.5
    partition = folded_grid(grid, speed)
    slow = grid.coordinates(grid.ranks // 3)
    differs = {
        tuple(grid.coordinates(r)[a] != slow[a] for a in AXES): partition.rank_class[r] for r in range(grid.ranks)
    }
    even = folded_grid(grid, np.ones(grid.ranks)).rank_classes
    assert len(differs) == 2 ** sum(size > 1 for size in sizes)
    assert len(set(differs.values())) == len(differs)
    assert len(differs) <= partition.rank_classes <= len(differs) * even


def test_equal_ranks_are_one_class() -> None:
    partition = folded_grid(Grid(data=3, z=4, x=8), np.ones(96))
    assert partition.rank_classes <= 8  # at most the devices of a node
    assert np.bincount(partition.rank_class).sum() == 96
