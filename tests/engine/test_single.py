"""One collective by itself: alone, and with all its sister groups at work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from twin.cost.collective import collective_cost, resource_capacity
from twin.cost.placement import Placement
from twin.description.load import load_machine
from twin.engine.single import collective_answer

TESTBED = Path(__file__).parents[1] / "testbed" / "data" / "testbed.yaml"


@pytest.mark.parametrize(("ranks", "stride"), [(3, 6), (6, 3), (4, 3), (12, 3), (5, 6), (8, 1)])
def test_all_groups_together_take_as_long_as_what_the_busiest_part_carries(ranks: int, stride: int) -> None:
    """Sister groups may lie on other devices of their nodes than the first, and more of them on one NIC."""
    machine, size = load_machine("lumi"), 1e8
    alone, carried = [], Counter[tuple[str, int, int]]()
    for first in range(stride):
        nodes: dict[int, list[int]] = {}
        for member in range(ranks):
            node, device = divmod(first + member * stride, machine.devices_per_node)
            nodes.setdefault(node, []).append(device)
        placement = Placement(tuple(map(tuple, nodes.values())), (0,) * len(nodes))
        cost = collective_cost(machine, machine.libraries["rccl"], "all_reduce", size, placement)
        alone.append(cost.seconds)
        for load in cost.loads:
            kind, node, index = load.resource
            carried[kind, list(nodes)[node], index] += load.bytes
    answer = collective_answer("lumi", "all_reduce", ranks, f"{size:.0f} B", stride, "rccl")
    assert answer["seconds"] == pytest.approx(alone[0], rel=1e-12)
    busiest = max(bytes_ / resource_capacity(machine, kind, index) for (kind, _, index), bytes_ in carried.items())
    assert answer["seconds_with_all_groups"] >= max(*alone, busiest) * (1 - 1e-12)


def test_on_shared_cores_what_limits_it_is_named() -> None:
    """A test bed's ranks send through a NIC and compute sums on cores that all share."""
    answer = collective_answer(str(TESTBED), "all_reduce", 4, "1 MB", 1, None)
    assert answer["busiest_alone"].startswith("NIC 0")


def test_over_tcp_groups_of_two_nodes_share_what_an_all_to_all_reaches() -> None:
    """In which 16 pairs of ranks talk at once: less than one ring has (argonne-lcf/alcf-nccl-tests, setting 1)."""
    for stride, total in ((1, 0.163), (2, 0.122), (4, 0.122)):
        members = 8 // stride
        answer = collective_answer("polaris", "all_gather", members, "2 GB", stride, "nccl-tcp")
        sent = stride * 2e9 * (members - 1) / members
        node = sent / (answer["seconds_with_all_groups"] - answer["startup_seconds"])
        assert node == pytest.approx(total * 2 * 25e9 * 0.94, rel=1e-3)
        assert answer["full_with_all_groups"] == ("nothing" if stride == 1 else "NICs")
    plugged = collective_answer("polaris", "all_gather", 4, "256 MB", 2, "nccl")
    assert plugged["seconds_with_all_groups"] < 2 * plugged["seconds"]


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_ring_carries_all_of_a_broadcast_over_each_link(ranks: int) -> None:
    """So its bus bandwidth is its bytes over its time (nccl-tests, doc/PERFORMANCE.md), and no link is beyond it."""
    answer = collective_answer("dgx-h100", "broadcast", ranks, "1 GB", 1, None)
    assert answer["bus_bandwidth_bytes_per_second"] == pytest.approx(1e9 / answer["seconds"], rel=1e-12)
