"""Placement over dragonfly groups: it changes what crosses groups, and nothing else (issue: criterion 5)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.groups import along
from tests.profiles import examples
from twin.cost.collectives.tree import tree_crossings
from twin.description.problems import DescriptionError
from twin.engine.layout import Layout
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.strategies import load_job
from twin.strategies.four_d.grid import AXES, Grid

repeatable = examples(0.6, derandomize=True)
MODEL = {"layers": 2, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 512}
FAR = ["machine.network.group_latency=200 us"]
"""Between groups, so far that a proxy's work on each step of a ring does not hide it."""


def job(grid: dict[str, int], placement: Any = "contiguous", overrides: Sequence[str] = (), **changes: Any) -> Any:
    ranks = int(np.prod(list(grid.values())))
    sequences = 2 * grid.get("data", 1) * grid.get("z", 1)
    return load_job(
        {
            "model": MODEL,
            "machine": "frontier",
            "ranks": ranks,
            "grid": grid,
            "placement": placement,
            "batch": {"sequences": sequences, "micro_sequences": 1},
            **changes,
        },
        overrides,
    )


def prices_by_axis(simulation: Simulation) -> dict[str, set[float]]:
    """Seconds of every collective on every placement that occurs, by communicator."""
    found: dict[str, set[float]] = {}
    for (communicator, _, _), costs in zip(simulation.program.calls, simulation.prices.costs, strict=True):
        found.setdefault(communicator, set()).update(c.seconds for c in costs)
    return found


@repeatable
@given(
    grid=st.builds(Grid, **{axis: st.integers(1, 5) for axis in AXES}),
    groups=st.integers(1, 5),
    order=st.sampled_from(["blocks", "cyclic"]),
)
def test_patterns_follow_from_the_definition(grid, groups, order):
    """Also where a group of ranks comes back to a dragonfly group that it had left."""
    nodes = -(-grid.ranks // 8)
    groups = min(groups, nodes)
    described = job(
        dict(zip(AXES, grid.sizes, strict=True)),
        {"groups": groups, "order": order},
        model=MODEL | {"hidden": 480, "heads": 60, "mlp_width": 480 * 4},
    )
    layout = Layout.of(described)
    group_of_node = {}
    for node in range(nodes):
        group_of_node[node] = node % groups if order == "cyclic" else node * groups // nodes
    assert len(set(group_of_node.values())) == groups
    counts = np.bincount(list(group_of_node.values()))
    assert max(counts) - min(counts) <= 1
    for axis in AXES:
        found = along(grid, axis, layout)
        for members, pattern in zip(found.members.tolist(), found.pattern, strict=True):
            used = list(dict.fromkeys(rank // 8 for rank in members))
            seen: dict[int, int] = {}
            expected = [seen.setdefault(group_of_node[node], len(seen)) for node in used]
            assert list(found.placements[pattern].switch_groups) == expected


def test_only_the_axis_that_crosses_groups_changes():
    """z groups fill a node, data groups have a member in every node."""
    grid = {"data": 8, "z": 8, "y": 1, "x": 1}
    near, far = simulate(job(grid, overrides=FAR)), simulate(job(grid, {"groups": 4, "order": "cyclic"}, FAR))
    before, after = prices_by_axis(near), prices_by_axis(far)
    assert before["z_gather"] == after["z_gather"]
    assert before["z_scatter"] == after["z_scatter"]
    assert max(after["data"]) > max(before["data"])
    inner = [report(s).communication_by_axis["z"] for s in (near, far)]
    assert inner[0] == pytest.approx(inner[1], rel=1e-12)
    assert far.step_seconds > near.step_seconds


def test_blocks_leave_alone_what_stays_inside_one():
    """Four nodes to a z group, four nodes to a dragonfly group: again only data crosses."""
    grid = {"data": 4, "z": 32, "y": 1, "x": 1}
    blocks = prices_by_axis(simulate(job(grid, {"groups": 4}, FAR)))
    cyclic = prices_by_axis(simulate(job(grid, {"groups": 4, "order": "cyclic"}, FAR)))
    near = prices_by_axis(simulate(job(grid, overrides=FAR)))
    assert blocks["z_gather"] == near["z_gather"]
    assert max(blocks["data"]) > max(near["data"])
    # dealt out, every hop of z leaves its group; node i and node i+4 of data share one
    assert max(cyclic["z_gather"]) > max(near["z_gather"])
    assert cyclic["data"] == near["data"]


@pytest.mark.parametrize("order", ["blocks", "cyclic"])
def test_nothing_changes_where_crossing_groups_costs_nothing(order):
    grid = {"data": 2, "z": 4, "y": 2, "x": 4}
    free = {
        "extends": "frontier",
        "network": {
            "group_latency": 0,
            "switch_latency": 0,
            "group_bandwidth": {"value": 1e18, "kind": "assumed", "source": "test"},
        },
    }
    near = simulate(job(grid, machine=free))
    far = simulate(job(grid, {"groups": 4, "order": order}, machine=free))
    assert far.step_seconds == near.step_seconds


def test_a_job_in_one_node_does_not_notice():
    grid = {"data": 1, "z": 2, "y": 2, "x": 2}
    placed = simulate(job(grid, {"groups": 1, "order": "cyclic"}))
    assert placed.step_seconds == simulate(job(grid)).step_seconds


@pytest.mark.parametrize("order", ["blocks", "cyclic"])
def test_folded_agrees_with_every_rank_simulated(order):
    narrow = {
        "extends": "frontier",
        "network": {"group_bandwidth": {"value": "20 GB/s", "kind": "assumed", "source": "test"}},
    }
    described = job({"data": 3, "z": 8, "y": 1, "x": 2}, {"groups": 3, "order": order}, machine=narrow)
    folded, whole = simulate(described), simulate(described, engine="des")
    assert folded.step_seconds == pytest.approx(whole.step_seconds, rel=1e-9)


def edges_by_definition(groups: tuple[int, ...]) -> list[int]:
    """Edges that leave each group, from the tree drawn by halving: parent of i at its lowest bit."""
    nodes = len(groups)
    leaving = [0] * (max(groups) + 1)
    for order in (list(range(nodes)), list(range(nodes))[::-1]):
        for child in range(1, nodes):
            bit = 1
            while not child & bit:
                bit *= 2
            parent = child - bit + (2 * bit if not child & (2 * bit) else 0)
            if parent >= nodes:
                parent = child - bit
            a, b = groups[order[child]], groups[order[parent]]
            if a != b:
                leaving[a] += 1
                leaving[b] += 1
    return leaving


@repeatable
@given(st.lists(st.integers(0, 3), min_size=2, max_size=40))
def test_tree_edges_between_groups_are_counted(groups):
    seen: dict[int, int] = {}
    numbered = tuple(seen.setdefault(g, len(seen)) for g in groups)
    assert list(tree_crossings(numbered)) == edges_by_definition(numbered)
    nodes = len(numbered)
    if len(seen) == nodes:  # all apart: every edge of both trees crosses, seen from both ends
        assert sum(tree_crossings(numbered)) == 4 * (nodes - 1)


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"placement": {"groups": 9}}, "placement.groups", "fill 8 nodes"),
        ({"placement": {"groups": 0}}, "placement.groups", "greater than 0"),
        ({"placement": {"groups": 2, "order": "random"}}, "placement.order", "cyclic"),
        ({"placement": "spread"}, "placement", "contiguous"),
        ({"placement": {"groups": 2}, "machine": "dgx-h100"}, "placement", "no dragonfly groups"),
        (
            {"placement": {"groups": 1}, "machine": {"extends": "frontier", "network": {"group_nodes": 4}}},
            "placement.groups",
            "at least 2 groups",
        ),
        (
            {"placement": {"groups": 3}, "machine": {"extends": "frontier", "nodes": 9, "network": {"group_nodes": 4}}},
            "placement.groups",
            "2 groups with room",
        ),
    ],
)
def test_impossible_placements_are_refused(changes, path, words):
    with pytest.raises(DescriptionError) as caught:
        job({"data": 2, "z": 4, "y": 2, "x": 4}, **changes)
    assert [p for p in caught.value.problems if p.path == path and words in p.message]
