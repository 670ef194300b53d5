"""Degraded NICs, links and global links, against closed forms and the engine without folding."""

from typing import Any

import numpy as np
import pytest

from twin.cost.collective import collective_cost, resource_capacity
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.schedule.ops import axis_of
from twin.strategies import load_job

MODEL = {"layers": 1, "hidden": 1024, "heads": 8, "sequence": 128, "vocabulary": 512}


def assumed(value: float | str) -> dict[str, Any]:
    return {"value": value, "kind": "assumed", "source": "test"}


LONE = {  # one device and one NIC in a node: a collective between nodes has each NIC to itself
    "extends": "perlmutter",
    "devices_per_node": 1,
    "nic": {"devices": [[0]], "bandwidth": "1 GB/s"},
    "fabric": {"links": []},
}
IDEAL = LONE | {  # nothing but the wire costs anything, so a ring fills its NIC
    "nic": LONE["nic"] | {"efficiency": 1.0, "latency": 0},
    "network": {"switch_latency": 0, "group_latency": 0},
    "libraries": {
        "nccl": {
            "ring": {"network_efficiency": {"all_reduce": 1.0}, "network_step": {"all_reduce": 0}},
            "tree": {"network_efficiency": 0.1, "many_nodes_efficiency": 0.1},
            "protocols": {
                "Simple": {"base": 0, "ring_network_hop": 0},
                "LL": {"network_share": 0.01, "tree_network_share": 0.01},
            },
        }
    },
}


def job(grid: dict[str, int], machine: Any = "frontier", **changes: Any) -> Any:
    ranks = int(np.prod(list(grid.values())))
    sequences = grid.get("data", 1) * grid.get("z", 1)
    return load_job(
        {
            "model": MODEL,
            "machine": machine,
            "ranks": ranks,
            "grid": grid,
            "batch": {"sequences": sequences, "micro_sequences": 1},
            **changes,
        }
    )


def seconds_of(simulation: Simulation, axis: str) -> float:
    """Duration of the axis's only collective on the first class of ranks."""
    timeline, program = simulation.timeline, simulation.program
    calls = [i for i, (c, _, _) in enumerate(program.calls) if axis_of(c) == axis]
    ops = [i for i, t in enumerate(program.target) if program.code[i] == 1 and t in calls]
    [op] = ops
    return float(timeline.end[0, op] - timeline.start[0, op])


@pytest.mark.parametrize("machine", [LONE, IDEAL], ids=["real library", "wire only"])
@pytest.mark.parametrize("rate", [1.0, 0.9, 0.5, 0.125])
@pytest.mark.parametrize("node", [0, 1])
def test_a_lone_collective_takes_as_long_as_its_slowest_nic(machine, rate, node):
    """start-up + max(transfer alone, bytes through the NIC / (rate · capacity))."""
    degraded = [{"node": node, "nic": 0, "rate": rate}]
    slow = simulate(job({"data": 2}, machine, degraded=degraded))
    sound = job({"data": 2}, machine)
    calls = [(k, b) for c, k, b in slow.program.calls if c == "data"]
    [(kind, size)] = calls
    [placement] = {c.placement for costs in slow.prices.costs for c in costs if c.placement.ranks == 2}
    cost = collective_cost(sound.machine, sound.machine.libraries["nccl"], kind, size, placement)
    [sent] = [use.bytes for use in cost.node_loads[(0,)] if use.kind == "nic"]
    capacity = resource_capacity(sound.machine, "nic", 0)
    expected = cost.startup_seconds + max(cost.transfer_seconds, sent / (rate * capacity))
    assert seconds_of(slow, "data") == pytest.approx(expected, rel=1e-9)
    if machine is IDEAL:  # the ring fills its NIC, so it is slower by 1 / rate
        assert cost.startup_seconds == 0
        assert seconds_of(slow, "data") == pytest.approx(seconds_of(simulate(sound), "data") / rate, rel=1e-9)


SLOW = {
    "extends": "frontier",
    "nic": {"bandwidth": "200 MB/s"},
    "fabric": {"links": [{"devices": [a, b], "bandwidth": assumed("1 GB/s")} for a in range(8) for b in range(a)]},
    "network": {"group_nodes": 2, "group_bandwidth": assumed("500 MB/s")},
}


@pytest.mark.parametrize(
    "part",
    [
        {"node": 1, "nic": 2},
        {"node": 0, "link": [0, 1]},
        {"node": 2, "link": [5, 4]},
        {"group": 1},
        {"node": 3, "nic": 0},
    ],
    ids=str,
)
def test_folded_agrees_with_every_rank_simulated(part):
    grid = {"data": 2, "z": 2, "y": 2, "x": 4}
    described = job(grid, SLOW, degraded=[{**part, "rate": 0.3}])
    folded, whole = simulate(described), simulate(described, engine="des")
    assert folded.step_seconds == pytest.approx(whole.step_seconds, rel=1e-9)
    assert folded.step_seconds > simulate(job(grid, SLOW)).step_seconds * (1 + 1e-9)


def test_a_part_that_nobody_uses_or_fills_changes_nothing():
    """One node: no NIC carries anything; half of a NIC is enough for a trickle."""
    inside = {"data": 1, "z": 2, "y": 1, "x": 4}
    slow = job(inside, degraded=[{"node": 0, "nic": 1, "rate": 0.01}])
    assert simulate(slow).step_seconds == simulate(job(inside)).step_seconds


def test_rate_one_is_the_sound_machine():
    grid = {"data": 2, "z": 8, "y": 1, "x": 1}
    same = job(grid, degraded=[{"node": 1, "nic": 3, "rate": 1}])
    assert simulate(same).step_seconds == simulate(job(grid)).step_seconds


def test_a_switch_port_slows_what_passes_it():
    grid = {"data": 1, "z": 8, "y": 1, "x": 1}
    slow = simulate(job(grid, "dgx-h100", degraded=[{"node": 0, "port": 3, "rate": 0.001}]))
    assert slow.step_seconds > simulate(job(grid, "dgx-h100")).step_seconds


@pytest.mark.parametrize(
    ("one", "path", "words"),
    [
        ({"node": 4, "nic": 0, "rate": 0.5}, "degraded.0.node", "0 to 3"),
        ({"node": 0, "nic": 4, "rate": 0.5}, "degraded.0.nic", "0 to 3"),
        ({"node": 0, "link": [0, 7], "rate": 0.5}, "degraded.0.link", "[0, 1]"),
        ({"node": 0, "port": 0, "rate": 0.5}, "degraded.0.port", "no switch"),
        ({"group": 1, "rate": 0.5}, "degraded.0.group", "1 dragonfly group: 0 to 0"),
        ({"node": 0, "nic": 0, "rate": 0}, "degraded.0.rate", "greater than or equal to 0.001"),
        ({"node": 0, "nic": 0, "rate": 1.5}, "degraded.0.rate", "less than or equal to 1"),
        ({"node": 0, "nic": 0, "link": [0, 1], "rate": 0.5}, "degraded.0", "name one part"),
        ({"nic": 0, "rate": 0.5}, "degraded.0", "name one part"),
        ({"nod": 0, "nic": 0, "rate": 0.5}, "degraded.0.nod", "did you mean 'node'"),
    ],
)
def test_parts_that_are_not_there_are_refused(one, path, words):
    with pytest.raises(DescriptionError) as caught:
        job({"data": 2, "z": 2, "y": 2, "x": 4}, degraded=[one])
    assert [p for p in caught.value.problems if p.path == path and words in p.message]


def test_a_part_named_twice_is_refused():
    twice = [{"node": 0, "link": [0, 1], "rate": 0.5}, {"node": 0, "link": [1, 0], "rate": 0.4}]
    with pytest.raises(DescriptionError, match="a second time"):
        job({"data": 2, "z": 2, "y": 2, "x": 4}, degraded=twice)


def test_one_slow_nic_of_four_side_by_side_leaves_seven_eighths() -> None:
    """The other three carry what they did: as slow as a single NIC at 0.875 of its rate."""
    grid, slow = {"data": 4}, {"node": 1, "nic": 0}
    four = IDEAL | {"nic": IDEAL["nic"] | {"count": 4, "bandwidth": "0.25 GB/s"}}
    found = simulate(job(grid, four, degraded=[{**slow, "rate": 0.5}]))
    expected = simulate(job(grid, IDEAL, degraded=[{**slow, "rate": 0.875}]))
    assert found.step_seconds == expected.step_seconds
    assert found.step_seconds > simulate(job(grid, four)).step_seconds
