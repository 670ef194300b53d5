"""Collectives that share links slow each other by max-min fairness; others are left alone."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.engine.test_des import all_apart
from tests.profiles import examples
from twin.cost.collective import collective_cost
from twin.cost.placement import Placement
from twin.engine import des
from twin.engine.links import Transfer
from twin.engine.program import COMPUTE, START, WAIT, Program
from twin.engine.setting import Setting
from twin.engine.sharing import Flow, assign_speeds
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.schedule.ops import axis_of

repeatable = examples(2, derandomize=True)


def parallel(transfers: list[Transfer], capacity: list[float], delays: list[float] | None = None) -> list[float]:
    """Run collectives of ranks that have nothing in common but links; return when each ends."""
    ranks = len(transfers)
    made = Program(
        all_apart(3), [COMPUTE, START, WAIT], [1.0, 0.0, 0.0], [-1, 0, 1], [0.0] * 3, [("x", "all_reduce", 1.0)]
    )
    (timeline,) = des.run(
        [made],
        Setting(
            group_class={"x": list(range(ranks))},
            members={"x": [(r,) for r in range(ranks)]},
            transfers=[transfers],
            capacity=capacity,
            slowness=delays or [0.0] * ranks,
            compute_slowdown=0.0,
            collective_slowdown=0.0,
        ),
    )
    return timeline.end[:, 1].tolist()


def flow(seconds: float, rate: float, resource: int = 0, startup: float = 0.0) -> Transfer:
    return Transfer(startup, seconds, ((resource, rate),), rate)


def test_two_that_fill_a_nic_take_twice_as_long() -> None:
    assert parallel([flow(3.0, 25.0)] * 2, [25.0]) == pytest.approx([6.0, 6.0])
    assert parallel([flow(3.0, 25.0), flow(3.0, 25.0, 1)], [25.0, 25.0]) == [3.0, 3.0]


@given(ranks=st.integers(1, 8), seconds=st.floats(0.1, 10), share=st.floats(0.05, 1))
@repeatable
def test_n_equal_collectives_on_one_link(ranks, seconds, share) -> None:
    """Each asks for a share of the link: no loss while the shares fit, then in proportion."""
    ends = parallel([flow(seconds, share)] * ranks, [1.0])
    assert ends == pytest.approx([seconds * max(1.0, ranks * share)] * ranks)


@given(short=st.floats(0.1, 5), more=st.floats(0, 5))
@repeatable
def test_a_short_and_a_long_one(short, more) -> None:
    """They share until the short one is done (2·t); the long one then has the link to itself."""
    ends = parallel([flow(short, 10.0), flow(short + more, 10.0)], [10.0])
    assert ends == pytest.approx([2 * short, 2 * short + more])


@given(first=st.floats(1, 5), second=st.floats(0.1, 5), late=st.floats(0, 8), startup=st.floats(0, 1))
@repeatable
def test_one_that_comes_later(first, second, late, startup) -> None:
    ends = parallel([flow(first, 4.0), flow(second, 4.0, startup=startup)], [4.0], [0.0, late])
    begin = late + startup
    if begin >= first:
        assert ends == pytest.approx([first, begin + second])
    else:
        left = first - begin
        both = 2 * min(left, second)
        assert ends == pytest.approx([begin + both + max(0.0, left - second), begin + both + max(0.0, second - left)])


def test_a_modest_collective_keeps_its_rate() -> None:
    """2 of 10 GB/s is less than the fair half; the greedy one takes the other 8."""
    assert parallel([flow(5.0, 2.0), flow(4.0, 10.0)], [10.0]) == pytest.approx([5.0, 5.0])


def test_a_bottleneck_elsewhere_leaves_room() -> None:
    """A and B share link 0 (3 each), B is held to 1 by link 1, so A gets 5 of 6."""
    slow = Transfer(0.0, 1.0, ((0, 6.0), (1, 6.0)), 6.0)
    ends = parallel([flow(1.0, 6.0), slow, flow(1.0, 3.0, 1)], [6.0, 2.0])
    assert ends[0] == pytest.approx(6 / 5)


flows = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 20)), min_size=1, max_size=4, unique_by=lambda d: d[0]),
        st.integers(1, 5),
        st.floats(0.2, 1.0),
    ),
    min_size=1,
    max_size=8,
)


@given(described=flows, capacity=st.lists(st.floats(0.5, 40), min_size=4, max_size=4))
@repeatable
def test_max_min_fairness(described, capacity) -> None:
    """The defining property of max-min fairness, for classes of `count` equal flows each.

    No resource carries more than it can. Every flow runs at its own limit, or crosses a full
    resource on which no other flow has a higher rate: it cannot gain without a poorer one losing.
    """
    made = []
    for demands, count, limit in described:
        peak = max(rate for _, rate in demands)
        made.append(Flow([(r, rate * count) for r, rate in demands], peak, limit))
    assign_speeds(made, capacity)
    load = [sum(rate * f.speed for f in made for r, rate in f.demands if r == resource) for resource in range(4)]
    assert all(used <= most * (1 + 1e-9) for used, most in zip(load, capacity, strict=True))
    for f in made:
        assert 0 < f.speed <= f.limit
        if f.speed >= f.limit * (1 - 1e-9):
            continue
        level = f.speed * f.peak_rate
        held = False
        for resource, _ in f.demands:
            full = load[resource] >= capacity[resource] * (1 - 1e-9)
            others = [g.speed * g.peak_rate for g in made if resource in dict(g.demands)]
            held |= full and level >= max(others) * (1 - 1e-9)
        assert held


@given(described=flows, capacity=st.lists(st.floats(0.5, 40), min_size=4, max_size=4))
@repeatable
def test_speeds_do_not_depend_on_the_order_of_flows(described, capacity) -> None:
    def speeds(order: list[int]) -> list[float]:
        made = {}
        for i in order:
            demands, _, limit = described[i]
            made[i] = Flow(demands, max(rate for _, rate in demands), limit)
        assign_speeds(list(made.values()), capacity)
        return [made[i].speed for i in sorted(made)]

    forward = list(range(len(described)))
    assert speeds(forward) == pytest.approx(speeds(forward[::-1]), rel=1e-9)


def test_a_flow_without_links_runs_at_its_limit_beside_others() -> None:
    made = [Flow([], 0.0, 0.6), Flow([(0, 10.0)], 10.0), Flow([(0, 10.0)], 10.0)]
    assign_speeds(made, [10.0])
    assert [f.speed for f in made] == [0.6, 0.5, 0.5]


QUIET = {"variation": {"compute_slowdown": 0.0, "collective_slowdown": 0.0, "device_speed_spread": 0.0}}


def durations(simulation: Simulation, axis: str) -> np.ndarray:
    """(rank classes, collectives of the axis): seconds from start to end."""
    program = simulation.program
    at = [
        i
        for i, code in enumerate(program.code)
        if code == START and axis_of(program.calls[program.target[i]][0]) == axis
    ]
    return (simulation.timeline.end - simulation.timeline.start)[:, at]


def computes(simulation: Simulation) -> np.ndarray:
    at = np.array(simulation.program.code) == COMPUTE
    return (simulation.timeline.end - simulation.timeline.start)[:, at]


@pytest.mark.parametrize("sisters", [1, 2, 4])
def test_sister_groups_divide_a_nic(make_job, sisters) -> None:
    """Groups over data with one member on each of two nodes; all share the node's only NIC."""
    machine = {"extends": "perlmutter", **QUIET, "nic": {"devices": [[0, 1, 2, 3]]}}
    job = make_job({"data": 2, "z": 4}, machine, clip_gradients=False)
    simulation = simulate(job)
    if sisters < 4:  # the same job on nodes of fewer devices
        links = [
            {"devices": [a, b], "bandwidth": {"value": "100 GB/s", "kind": "assumed", "source": "test"}}
            for a in range(sisters)
            for b in range(a)
        ]
        small = {
            **machine,
            "devices_per_node": sisters,
            "fabric": {"links": links},
            "nic": {"devices": [list(range(sisters))]},
        }
        job = make_job({"data": 2, "z": sisters}, small, clip_gradients=False)
        simulation = simulate(job)
    (call,) = [c for c in simulation.program.calls if c[0] == "data"]
    library = job.machine.libraries[job.machine.library]
    cost = collective_cost(job.machine, library, call[1], call[2], Placement(((0,), (0,)), (0, 0)))
    (load,) = [use for use in cost.node_loads[(0,)] if use.kind == "nic"]
    nic = job.machine.nic.bandwidth_bytes_per_second * job.machine.nic.efficiency
    transfer = max(cost.transfer_seconds, sisters * load.bytes / nic)
    assert durations(simulation, "data") == pytest.approx(cost.startup_seconds + transfer, rel=1e-9)
    if sisters > 1:
        assert transfer > 0.8 * sisters * cost.transfer_seconds


@pytest.mark.parametrize("engine", ["folded", "des"])
def test_twice_the_nic_bandwidth_changes_only_what_leaves_the_node(make_job, engine) -> None:
    """x lies inside the nodes, data crosses them with one member on each."""
    machine = {"extends": "perlmutter", **QUIET}
    grid, model = {"data": 4, "x": 4}, "gpt2"
    slow, fast = (
        simulate(
            make_job(grid, machine, model=model, per_rank=2, overrides=(f"machine.nic.bandwidth={rate}",)),
            engine=engine,
        )
        for rate in ("100 Gbit/s", "200 Gbit/s")
    )
    assert computes(fast) == pytest.approx(computes(slow), rel=1e-6, abs=1e-12)
    assert durations(fast, "x") == pytest.approx(durations(slow, "x"), rel=1e-6, abs=1e-12)
    ratio = durations(fast, "data") / durations(slow, "data")
    assert np.all(ratio >= 0.5 - 1e-9)
    assert np.all(ratio < 0.6)  # large messages: hardly any latency
    saved = (durations(slow, "data") - durations(fast, "data")).sum(axis=1)
    assert slow.step_seconds - fast.step_seconds == pytest.approx(saved.max(), rel=1e-6)


def test_twice_the_nic_bandwidth_changes_nothing_on_one_node(make_job) -> None:
    one, two = (
        simulate(make_job({"x": 2, "z": 2}, "perlmutter", overrides=(f"machine.nic.bandwidth={rate}",)))
        for rate in ("100 Gbit/s", "200 Gbit/s")
    )
    assert np.array_equal(one.timeline.end, two.timeline.end)


@given(
    factor=st.floats(1.0, 8.0),
    rank=st.integers(0, 15),
    x=st.sampled_from([1, 2, 4]),
    z=st.sampled_from([1, 2, 4]),
    machine=st.sampled_from(["perlmutter", "frontier", "dgx-a100"]),
)
@examples(0.4, derandomize=True)
def test_a_straggler_lengthens_the_step_at_most_by_its_factor(make_job, factor, rank, x, z, machine) -> None:
    grid = {"data": 16 // (x * z), "z": z, "x": x}
    model = {"layers": 2, "hidden": 1024, "heads": 16, "sequence": 512, "vocabulary": 8192}
    even, slow = (
        simulate(make_job(grid, machine, model=model, stragglers=stragglers)).step_seconds
        for stragglers in ([], [{"rank": rank, "slowdown": factor}])
    )
    assert even * (1 - 1e-9) <= slow <= even * factor * (1 + 1e-9)
    assume(factor > 1.1)
    assert slow > even


FOUR_OR_ONE = ((4, "12.5 GB/s"), (1, "50 GB/s"))


def test_several_nics_side_by_side_are_one_of_their_rate(make_job) -> None:
    """An AWS p5 has 32 NICs of 100 Gbit/s, four for each H100: as fast as eight of 400."""
    grid = {"data": 4, "z": 8}
    few = ({"extends": "dgx-h100", "nic": {"count": count, "bandwidth": rate}} for count, rate in FOUR_OR_ONE)
    four, one = (simulate(make_job(grid, machine)) for machine in few)
    assert four.job.machine.nic.peak_bytes_per_second == 50e9
    assert four.step_seconds == one.step_seconds
    slower = simulate(make_job(grid, {"extends": "dgx-h100", "nic": {"count": 1, "bandwidth": "12.5 GB/s"}}))
    assert slower.step_seconds > four.step_seconds
