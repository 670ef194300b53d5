"""Groups and their placement, against a slow enumeration from the definition of the grid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.groups import along
from tests.profiles import examples
from twin.cost.placement import Placement
from twin.description.load import load_machine
from twin.engine.layout import Layout
from twin.schedule.communicator import axis_members
from twin.strategies.four_d.grid import AXES, Grid, factorizations

MACHINES = {name: load_machine(name) for name in ("frontier", "perlmutter", "alps", "dgx-a100")}
grids = st.builds(Grid, **{axis: st.integers(1, 6) for axis in AXES})
repeatable = examples(0.6, derandomize=True)


def groups_by_definition(grid: Grid, axis: str) -> set[tuple[int, ...]]:
    """Ranks that differ only in the axis: rank = ((d · G_z + z) · G_y + y) · G_x + x."""
    found: dict[tuple[int, ...], list[int]] = {}
    for d in range(grid.data):
        for z in range(grid.z):
            for y in range(grid.y):
                for x in range(grid.x):
                    at = {"data": d, "z": z, "y": y, "x": x}
                    rank = ((d * grid.z + z) * grid.y + y) * grid.x + x
                    key = tuple(v for a, v in at.items() if a != axis)
                    found.setdefault(key, []).append(rank)
    return {tuple(ranks) for ranks in found.values()}


def placement_by_definition(ranks: tuple[int, ...], devices: int, group_nodes: int) -> Placement:
    """Devices used node by node, and dragonfly groups numbered in order of appearance."""
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(rank // devices, []).append(rank % devices)
    seen: dict[int, int] = {}
    groups = [seen.setdefault(node // group_nodes, len(seen)) for node in nodes]
    return Placement(tuple(tuple(used) for used in nodes.values()), tuple(groups))


@given(grid=grids)
@repeatable
def test_axis_groups_are_ranks_that_differ_in_one_coordinate(grid) -> None:
    for axis in AXES:
        members = axis_members(grid, axis)
        assert {tuple(row) for row in members.tolist()} == groups_by_definition(grid, axis)
        assert members.shape == (grid.ranks // grid.size(axis), grid.size(axis))


@given(grid=grids, machine=st.sampled_from(sorted(MACHINES)), group_nodes=st.integers(1, 5))
@repeatable
def test_every_group_has_its_own_placement(grid, machine, group_nodes) -> None:
    described = MACHINES[machine]
    network = described.network.model_copy(update={"group_nodes": group_nodes})
    described = described.model_copy(update={"network": network})
    layout = Layout.contiguous(described, grid.ranks)
    for axis in AXES:
        groups = along(grid, axis, layout)
        assert len(set(groups.placements)) == len(groups.placements)
        for number, row in enumerate(groups.members.tolist()):
            expected = placement_by_definition(tuple(row), described.devices_per_node, group_nodes)
            assert groups.placements[groups.pattern[number]] == expected
            assert all(groups.group_of_rank[rank] == number for rank in row)


@given(machine=st.sampled_from(sorted(MACHINES)), ranks=st.integers(1, 600))
@repeatable
def test_ranks_fill_node_after_node(machine, ranks) -> None:
    described = MACHINES[machine]
    layout = Layout.contiguous(described, ranks)
    per_group = described.network.group_nodes or described.nodes
    for rank in range(ranks):
        node, device = divmod(rank, described.devices_per_node)
        assert (layout.node[rank], layout.device[rank]) == (node, device)
        assert layout.switch_group[rank] == node // per_group


@pytest.mark.parametrize(("x", "nodes"), [(4, 1), (8, 1), (16, 2), (3, None)])
def test_inner_groups_are_packed_into_nodes(x, nodes) -> None:
    """On eight devices a node: 4 and 8 stay inside, 16 takes two whole nodes, 3 crosses."""
    grid = Grid(x=x, data=48 // x if 48 % x == 0 else 1)
    groups = along(grid, "x", Layout.contiguous(MACHINES["frontier"], grid.ranks))
    touched = {placement.node_count for placement in groups.placements}
    assert touched == ({nodes} if nodes else {1, 2})


@given(grid=grids, rank=st.integers(0, 6**4 - 1))
@repeatable
def test_coordinates_are_the_rank_written_in_the_grid(grid, rank) -> None:
    rank %= grid.ranks
    at = grid.coordinates(rank)
    back = ((at["data"] * grid.z + at["z"]) * grid.y + at["y"]) * grid.x + at["x"]
    assert back == rank
    assert all(0 <= at[axis] < grid.size(axis) for axis in AXES)


@pytest.mark.parametrize("ranks", [1, 7, 12, 60, 64])
def test_factorizations_are_all_products(ranks) -> None:
    every = {
        (d, z, y, x)
        for d in range(1, ranks + 1)
        for z in range(1, ranks // d + 1)
        for y in range(1, ranks // (d * z) + 1)
        for x in [ranks // (d * z * y)]
        if d * z * y * x == ranks
    }
    found = [grid.sizes for grid in factorizations(ranks)]
    assert len(found) == len(set(found))
    assert set(found) == every
