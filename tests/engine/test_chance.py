"""What is drawn, and what it does to a step: against statistics and closed forms."""

import math
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.tiers import full
from twin.description.load import load_machine
from twin.description.problems import DescriptionError
from twin.engine.all_ranks import drawn, groups_along, sharing, simulate_ranks
from twin.engine.bundles import shared_ends
from twin.engine.coverage import stretched
from twin.engine.cube import Cube
from twin.engine.differences import differences
from twin.engine.report import report, report_all_ranks
from twin.engine.seeds import rank_table, spread_of
from twin.engine.simulate import simulate
from twin.engine.variation import Factors, drawn_slowness, slowest_factor

QUIET = (
    "machine.variation.network_noise=0",
    "machine.variation.compute_jitter={value: 0, kind: assumed, source: test}",
)


def test_speeds_are_drawn_with_the_machine_s_spread() -> None:
    """Over all devices of Frontier (fastest − slowest) / fastest is what was measured: 15 %."""
    machine = load_machine("frontier")
    devices = machine.nodes * machine.devices_per_node
    spreads = []
    for seed in range(10):
        speed = 1.0 / drawn_slowness(machine, devices, seed)
        spreads.append((speed.max() - speed.min()) / speed.max())
        assert speed.mean() == pytest.approx(1.0, abs=1e-3)
    assert np.mean(spreads) == pytest.approx(0.15, abs=0.01)


def test_the_slowest_drawn_is_the_slowest_expected() -> None:
    machine = load_machine("perlmutter")
    slowest = np.mean([drawn_slowness(machine, 4096, seed).max() for seed in range(40)])
    assert slowest == pytest.approx(slowest_factor(machine, 4096), rel=0.005)


def test_factors_have_mean_one_and_the_deviation_asked_for() -> None:
    factors = Factors.draw(0.1, 1000, seed=3, salt=1)
    assert factors is not None
    assert factors.pool.mean() == pytest.approx(1.0, abs=1e-3)
    assert np.log(factors.pool).std() == pytest.approx(0.1, rel=0.01)
    first, again, other = factors.of(7, 1000), factors.of(7, 1000), factors.of(8, 1000)
    assert np.array_equal(first, again)
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.1
    assert Factors.draw(0.0, 1000, seed=3, salt=1) is None


def test_a_seed_gives_the_same_step_and_another_seed_another(make_job) -> None:
    job = make_job({"data": 2, "z": 2, "y": 2, "x": 2}, "frontier")
    one, same, other = (simulate_ranks(job, seed=s).step_seconds for s in (1, 1, 2))
    assert one == same != other


def test_data_parallel_ranks_wait_for_the_slowest_device(make_job) -> None:
    """With data alone the step is the slowest rank's compute and one all-reduce.

    What the others wait is what their devices are faster by.
    """
    model = {"layers": 2, "hidden": 4096, "heads": 32, "sequence": 2048, "vocabulary": 4096}
    job = make_job({"data": 16}, "perlmutter", model=model, overrides=QUIET)
    every = simulate_ranks(job, seed=5)
    slowness, compute = every.slowness.reshape(-1), every.outcome.compute.reshape(-1)
    unit = compute[0] / slowness[0]
    np.testing.assert_allclose(compute, unit * slowness, rtol=1e-9)
    before = simulate_ranks(job, seed=5).outcome.peers["data"].reshape(-1)
    # the optimizer comes after the all-reduce, so not all of compute is waited for
    share = before[slowness.argmin()] / (slowness.max() - slowness.min())
    np.testing.assert_allclose(before, share * (slowness.max() - slowness), rtol=1e-6, atol=1e-12)
    assert 0.5 * unit < share <= unit * (1 + 1e-9)


def test_noise_makes_a_group_wait_for_its_longest(make_job) -> None:
    """One z group in each of n data replicas; the step follows the slowest of the noisy gathers."""
    quiet = make_job({"data": 64, "z": 2}, "perlmutter", overrides=QUIET)
    noisy = make_job(
        {"data": 64, "z": 2},
        "perlmutter",
        overrides=(QUIET[1], "machine.variation.network_noise=0.2", "machine.variation.device_speed_spread=0"),
    )
    still = make_job({"data": 64, "z": 2}, "perlmutter", overrides=(*QUIET, "machine.variation.device_speed_spread=0"))
    assert simulate_ranks(still).step_seconds == pytest.approx(simulate(still).step_seconds, rel=1e-9)
    steps = [simulate_ranks(noisy, seed=s).step_seconds for s in range(5)]
    # on average: the one all-reduce over data may be short by chance
    assert np.mean(steps) > simulate_ranks(still).step_seconds
    assert simulate_ranks(quiet).step_seconds != simulate_ranks(still).step_seconds


@pytest.mark.parametrize("ranks", [64, 8192])
def test_a_straggler_costs_what_the_folded_engine_says_and_the_axes_show_it(make_job, ranks) -> None:
    """One of 8,192 GCDs is 20 % slow: every event as without folding, and who waits where."""
    grid = {"data": ranks // 32, "z": 2, "y": 2, "x": 8}
    model = {"layers": 2, "hidden": 8192, "heads": 64, "sequence": 2048, "vocabulary": 4096}
    slow = [{"rank": ranks // 2 + 5, "slowdown": 1.2}]
    job = make_job(grid, "frontier", model=model, stragglers=slow, overrides=QUIET)
    even = make_job(grid, "frontier", model=model, overrides=QUIET)
    folded, healthy = simulate(job), simulate(even)
    every = simulate_ranks(job, nominal=folded, random=False)
    assert every.step_seconds == pytest.approx(folded.step_seconds, rel=1e-9)
    assert folded.step_seconds > healthy.step_seconds * 1.01
    assert folded.partition.rank_classes < 600
    one, all_of_them = report(folded), report_all_ranks(every)
    assert one.peers_by_axis == pytest.approx(all_of_them.peers_by_axis, rel=1e-6, abs=1e-12)
    assert max(report(healthy).peers_by_axis.values()) < 1e-9
    # the straggler's own x group waits in x; all other replicas wait for its replica, in data
    peers = every.outcome.peers
    own = np.unravel_index(slow[0]["rank"], every.slowness.shape)
    assert peers["x"][own] < 1e-9
    neighbour = (*own[:3], (own[3] + 1) % 8)
    assert peers["x"][neighbour] > 0
    elsewhere = ((own[0] + 1) % grid["data"], *own[1:])
    assert peers["data"][elsewhere] > 0
    assert peers["x"][elsewhere] < 1e-9


def test_percentiles_and_the_table_of_ranks(make_job) -> None:
    job = make_job({"data": 4, "x": 2}, "frontier")
    found = [simulate_ranks(job, seed=s) for s in range(11)]
    spread = spread_of([report_all_ranks(one) for one in found])["step_seconds"]
    ordered = sorted(one.step_seconds for one in found)
    assert spread == {"p10": ordered[1], "p50": ordered[5], "p90": ordered[9]}
    table = rank_table(found[0])
    assert table.column("rank").to_pylist() == list(range(8))
    assert table.column("x").to_pylist() == [0, 1] * 4
    waiting = sum(
        np.array(table.column(f"{kind}_{axis}_seconds"))
        for kind in ("exposed", "peers")
        for axis in ("data", "z", "y", "x")
    )
    total = np.array(table.column("compute_seconds")) + np.array(table.column("host_seconds"))
    np.testing.assert_allclose(waiting + total, np.array(table.column("end_seconds")), rtol=1e-9)


def test_ranks_on_shared_cores_are_refused(make_job) -> None:
    machine = {
        "extends": "laptop",
        "cores": {"count": {"value": 2, "kind": "assumed", "source": "test"}, "shared_by": "node"},
    }
    with pytest.raises(DescriptionError, match="share cores"):
        simulate_ranks(make_job({"data": 2}, machine))


def test_compute_beside_collectives_by_brute_force() -> None:
    """Integrate the rate in small steps."""
    rng = np.random.default_rng(0)
    begin = rng.uniform(0, 4, (3, 50))
    end = begin + rng.uniform(0, 3, (3, 50))
    now, work, stretch = rng.uniform(0, 3, 50), rng.uniform(0.1, 4, 50), 1.5
    got = stretched(now.copy(), work.copy(), stretch, [(begin[i], end[i]) for i in range(3)])
    for rank in range(50):
        edges = np.unique([*begin[:, rank], *end[:, rank], now[rank], 1e3])
        left, time = work[rank], math.nan
        for a, b in pairwise(edges):
            if b <= now[rank]:
                continue
            middle = (a + b) / 2
            busy = np.any((begin[:, rank] <= middle) & (middle < end[:, rank]))
            rate = 1 / stretch if busy else 1.0
            if left <= (b - a) * rate:
                time = a + left / rate
                break
            left -= (b - a) * rate
        assert got[rank] == pytest.approx(time, rel=1e-12)


def test_expected_extreme_of_what_is_drawn() -> None:
    """The slowest of n: Blom's approximation beside the distribution of the largest of n."""
    machine = load_machine("frontier")
    n = 1000
    exact = NormalDist().inv_cdf(0.5 ** (1 / n))  # median of the largest
    drawn = np.median([drawn_slowness(machine, n, s).max() for s in range(60)])
    sigma = 1 - 1 / slowest_factor(machine, n)
    assert 1 - 1 / drawn == pytest.approx(sigma * exact / 3.24, rel=0.05)


def stepwise(begin: list[float], work: list[float], fastest: float, step: float) -> list[float]:
    """Ends of transfers that share a link, in small steps of time."""
    left, ends, now = list(work), [math.inf] * len(work), 0.0
    while any(math.isinf(end) for end in ends):
        active = [i for i, end in enumerate(ends) if math.isinf(end) and begin[i] <= now]
        for i in active:
            left[i] -= step * min(fastest, len(work) / len(active))
            if left[i] <= 0:
                ends[i] = now + step
        now += step
    return ends


@given(data=st.data())
@examples(0.4, derandomize=True)
def test_transfers_that_come_apart_share_what_is_there(data) -> None:
    count = data.draw(st.integers(2, 5))
    one = st.floats(0.0, 2.0)
    begin = data.draw(st.lists(one, min_size=count, max_size=count))
    work = data.draw(st.lists(st.floats(0.1, 2.0), min_size=count, max_size=count))
    fastest = data.draw(st.floats(1.0, 5.0))
    got = shared_ends(np.array(begin)[:, None], np.array(work)[:, None], np.array([fastest]))
    expected = stepwise(begin, work, fastest, 1e-3)
    np.testing.assert_allclose(got[:, 0], expected, atol=0.02)


def test_groups_on_one_nic_are_found(make_job) -> None:
    """On Frontier two GCDs share a NIC: over nodes, y groups of neighbouring GCDs go together."""
    job = make_job(
        {"y": 4, "x": 8},
        "frontier",
        model={"layers": 2, "hidden": 8192, "heads": 64, "sequence": 2048, "vocabulary": 4096},
    )
    nominal = simulate(job)
    found = sharing(nominal, groups_along(nominal, Cube.of(nominal.mesh)))
    assert set(found) == {"y"}
    assert sorted(found["y"].groups.T.tolist()) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("machine", full(["frontier", "perlmutter", "alps"], "perlmutter", "alps"))
def test_where_links_are_shared_it_is_close_to_the_simpy_engine(make_job, machine) -> None:
    """With the same draws; docs/howto/every-rank.md has the figures of many jobs."""
    model = {"layers": 2, "hidden": 4096, "heads": 32, "sequence": 2048, "vocabulary": 51200}
    for grid in ({"data": 2, "z": 4, "x": 4}, {"data": 2, "z": 2, "y": 4, "x": 2}, {"data": 8, "y": 2}):
        job = make_job(grid, machine, model=model, per_rank=2, seed=3)
        cube = Cube.of(job.concrete_grid)
        every = simulate_ranks(job)
        same = differences(every.nominal, cube, drawn(job, cube, job.seed))
        expected = simulate(job, engine="des", differences=same).step_seconds
        assert every.step_seconds == pytest.approx(expected, rel=0.03)
