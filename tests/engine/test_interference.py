"""Who slows whom: priced collectives on one NIC, compute beside them, the host in between."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.groups import along
from twin.cost.collective import collective_cost
from twin.description.load import load_machine
from twin.description.problems import DescriptionError
from twin.engine.layout import Layout
from twin.engine.pricing import price
from twin.engine.report import report
from twin.engine.sharing import Flow, assign_speeds
from twin.engine.simulate import simulate, transfer_of
from twin.engine.symmetry import fold
from twin.schedule.communicator import Communicator
from twin.schedule.ops import axis_of
from twin.strategies.four_d.grid import Grid


@pytest.mark.parametrize(("machine", "z"), [("frontier", 512), ("frontier", 2048), ("dgx-h100", 16)])
def test_groups_of_different_shape_get_equal_parts_of_a_nic(machine: str, z: int) -> None:
    """Node-wide z groups beside data groups of one device per node.

    Whether a group also crosses global links that bind nothing must not change its part.
    """
    described = load_machine(machine)
    library = described.libraries[described.library]
    data = 4 if machine == "frontier" else 8
    layout = Layout.contiguous(described, data * z)
    grid = Grid(data=data, z=z)
    axes = {axis: along(grid, axis, layout) for axis in ("z", "data")}
    calls = [("z_gather", "all_gather", 4e9), ("data", "all_reduce", 4e9)]
    communicators = {name: Communicator.along(grid, axis_of(name), name) for name, _, _ in calls}
    prices = price(described, library, calls, communicators, axes, layout)
    speed = np.ones(grid.ranks)
    partition = fold(axes, prices.alike, prices.edges, speed, prices.capacity)
    flows, rates = [], []
    for call, axis in enumerate(("z", "data")):
        for group in partition.groups[axis]:
            transfer = transfer_of(prices, partition, call, axis, group)
            flows.append(Flow(transfer.demands, transfer.peak_rate))
            cost = prices.costs[call][group.pattern]
            uses = next(iter(cost.node_loads.values()))
            nic = max(use.bytes for use in uses if use.kind == "nic")
            rates.append(nic / cost.transfer_seconds)
    assign_speeds(flows, partition.capacity)
    achieved = [rate * flow.speed for rate, flow in zip(rates, flows, strict=True)]
    slowed = [a for a, flow in zip(achieved, flows, strict=True) if flow.speed < 1]
    assert len(slowed) == len(flows), "all of them need more than their part"
    assert max(slowed) == pytest.approx(min(slowed), rel=1e-6)


def test_a_collective_is_not_slowed_while_the_device_waits_for_the_host(make_job) -> None:
    """With a host so slow that the device is idle, gathers take the time they take alone."""
    job = make_job(
        {"z": 16},
        machine="frontier",
        model={"layers": 2, "hidden": 512, "heads": 8, "sequence": 128, "vocabulary": 1000},
        overrides=["machine.device.host=2 ms"],
    )
    simulation = simulate(job)
    timeline, machine = simulation.timeline, job.machine
    placement = simulation.prices.costs[0][0].placement
    library = machine.libraries[machine.library]
    scatters = [
        (op.bytes, timeline.end[0][i] - timeline.start[0][i])
        for i, (op, _) in enumerate(simulation.program.ops)
        if getattr(op, "kind", "") == "reduce_scatter"
    ]
    for size, seconds in scatters:
        alone = collective_cost(machine, library, "reduce_scatter", size, placement).seconds
        assert seconds == pytest.approx(alone, rel=0.02)


def test_energy_is_busy_power_for_the_computing_time_of_each_device(make_job) -> None:
    """Waiting for the slowest device is not computing; so it is where no watts by kind of work are known."""
    job = make_job({"z": 8}, machine="frontier", overrides=["machine.device.power=null"])
    figures, device = report(simulate(job)), job.machine.device
    assert figures.slowest_device_wait_seconds > 0
    idle = device.idle_watts * (figures.step_seconds - figures.compute_seconds)
    expected = 8 * (idle + device.busy_watts * figures.compute_seconds)
    assert figures.energy_joules == pytest.approx(expected)


@pytest.mark.parametrize(("machine", "least_gain"), [("alps", 0.1), ("perlmutter", 0.0)])
def test_with_graphs_the_host_issues_nothing(make_job, machine, least_gain) -> None:
    """The same as with a host that needs no time: Grace is slow, and a small model waits for it."""
    grid = {"z": 4, "x": 2}
    eager, graphs = (simulate(make_job(grid, machine, cuda_graphs=on)) for on in (False, True))
    free = ("machine.device.host=0 us", "machine.device.collective_host=0 us")
    without = simulate(make_job(grid, machine, overrides=free))
    assert graphs.step_seconds == without.step_seconds
    assert graphs.step_seconds < (1 - least_gain) * eager.step_seconds


def test_a_cpu_has_no_graphs(make_job) -> None:
    with pytest.raises(DescriptionError, match=r"cuda_graphs = True: .* only GPUs have graphs"):
        make_job({"x": 2}, "laptop", cuda_graphs=True)


@pytest.mark.parametrize("machine", ["dgx-a100", "alps"])
def test_under_a_profiler_the_host_takes_longer(make_job, machine) -> None:
    """The same as with a host that is slower by what was measured: 30.498 ms for 17.839."""
    plain = make_job({"z": 4, "x": 2}, machine)
    device, ratio = plain.machine.device, 30.498 / 17.839
    slower = [f"machine.device.host={ratio * device.host_seconds} s"]
    if device.collective_host_seconds is not None:
        slower.append(f"machine.device.collective_host={ratio * device.collective_host_seconds} s")
    profiled = simulate(make_job({"z": 4, "x": 2}, machine, profiler=True))
    expected = simulate(make_job({"z": 4, "x": 2}, machine, overrides=tuple(slower)))
    assert profiled.step_seconds == pytest.approx(expected.step_seconds, rel=1e-12)
    assert profiled.step_seconds > simulate(plain).step_seconds


@pytest.mark.parametrize(("machine", "others"), [("laptop", {}), ("perlmutter", {"cuda_graphs": True})])
def test_what_a_profiler_costs_is_not_known_everywhere(make_job, machine, others) -> None:
    with pytest.raises(DescriptionError, match=r"profiler = True: .* is not known"):
        make_job({"x": 2}, machine, profiler=True, **others)
