"""Devices and links that become slow: against renewal theory, exact fractions, and runs as they were."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import exp, sqrt
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.test_cli import Cli
from twin.engine.simulate import simulate
from twin.goodput.cycle import Cycle, slowed
from twin.goodput.long_run import LongRun, Slowdown
from twin.goodput.predict import Prediction, predict
from twin.goodput.run import Policy, run
from twin.goodput.slow import drawn, found_after, slowdowns_of, with_slow_device, with_slow_link
from twin.strategies import load_job

DAY = 86400.0
HEALTHY = LongRun(
    step_seconds=10.0,
    nodes=2048,
    host_failures_per_second=0.0,
    job_failures_per_second=0.0,
    repair_seconds=DAY,
    restart_seconds=0.0,
    state_bytes=1e12,
    write_seconds=0.0,
    read_seconds=0.0,
    copy_seconds=0.0,
    neighbour_seconds=0.0,
)
FAILING = replace(
    HEALTHY,
    host_failures_per_second=1 / 11136.0,
    job_failures_per_second=1 / 30000.0,
    restart_seconds=300.0,
    write_seconds=60.0,
    read_seconds=7.0,
    copy_seconds=1.0,
    neighbour_seconds=1.0,
)
DEVICE = Slowdown("device", 1 / 40000.0, 10000.0, (1.25,), replaced=True)
LINK = Slowdown("link", 1 / 30000.0, 6000.0, (2.0,), replaced=False)
PARTS = ("useful", "slow", "lost", "saving", "restarting", "waiting")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    path = tmp_path / "job.yaml"
    described = {
        "model": "gpt-20b",
        "machine": "frontier",
        "ranks": 2048,
        "grid": {"data": 32, "z": 64},
        "batch": {"sequences": 8192, "micro_sequences": 4},
    }
    path.write_text(yaml.safe_dump(described), encoding="utf-8")
    return Cli(capsys, path)


@pytest.mark.parametrize(
    "never",
    [
        (),
        (Slowdown("device", 0.0, 3600.0, (1.2,), replaced=True), Slowdown("link", 0.0, 3600.0, (3.0,), replaced=False)),
        (Slowdown("link", 1e-4, 3600.0, (1.0,), replaced=False),),
    ],
)
@pytest.mark.parametrize(
    ("policy", "as_before"),
    [
        (
            Policy("sync", 1098.0),
            (2192081.3186606294, 178301.89770316446, 120298.46899809912, 101318.31463810697, 0.0, 335),
        ),
        (Policy("async", 45.0), (1815885.0, 23403.100820347612, 651393.5845415455, 101318.31463810697, 0.0, 335)),
        (
            Policy("memory", 30.0, 600.0, 2),
            (785250.0, 1754.0163237689178, 52359.925904396165, 31727.705519508803, 1720908.3522523262, 109),
        ),
    ],
)
def test_where_nothing_becomes_slow_runs_are_what_they_were(policy, as_before, never) -> None:
    """To the bit, as before slowdowns were known."""
    found = run(replace(FAILING, slowdowns=never), policy, 30 * DAY, 7)
    names = ("useful", "lost", "saving", "restarting", "waiting", "stops")
    assert tuple(getattr(found, name) for name in names) == as_before
    assert found.slow == found.replaced == 0


slowdowns = st.builds(
    Slowdown,
    st.just("device"),
    st.floats(0.0, 1e-3),
    st.floats(0.0, 1e5),
    st.lists(st.floats(1.0, 50.0), min_size=1, max_size=3).map(tuple),
    st.booleans(),
)


@given(
    mode=st.sampled_from(["sync", "async", "memory"]),
    interval=st.floats(5.0, 1e5),
    every=st.floats(1.0, 1e4),
    spares=st.one_of(st.none(), st.integers(0, 3)),
    hosts=st.floats(0.0, 1e-3),
    write=st.floats(0.1, 2000.0),
    slow=st.lists(slowdowns, max_size=3),
    seed=st.integers(0, 50),
)
@examples(2, derandomize=True)
def test_every_second_is_booked_once(mode, interval, every, spares, hosts, write, slow, seed) -> None:
    plan = replace(FAILING, host_failures_per_second=hosts, write_seconds=write, slowdowns=tuple(slow))
    found = run(plan, Policy(mode, interval, max(interval, every), spares), 3 * DAY, seed)
    parts = [getattr(found, name) for name in PARTS]
    assert all(part >= -1e-6 for part in parts)
    assert sum(parts) == pytest.approx(found.total, rel=1e-9)


def lost_share(*worst_first: Slowdown) -> float:
    """Renewal theory: so many begin while one lasts, Poisson; the worst that is there decides.

    Of the time in which steps take f times as long, 1 - 1/f is lost.
    """
    share, none_worse = 0.0, 1.0
    for one in worst_first:
        none = exp(-one.per_second * one.seconds)
        share += none_worse * (1.0 - none) * (1.0 - 1.0 / one.factors[0])
        none_worse *= none
    return share


OFTEN = (replace(LINK, per_second=1e-3), DEVICE)


@pytest.mark.parametrize("causes", [(LINK,), (DEVICE,), (LINK, DEVICE), pytest.param(OFTEN, marks=pytest.mark.full)])
def test_slow_time_is_that_of_renewal_theory(causes: tuple[Slowdown, ...]) -> None:
    """Where finding a slow device costs nothing and nothing fails."""
    plan = replace(HEALTHY, slowdowns=causes)
    slow = [run(plan, Policy("sync", 1000.0), 300 * DAY, seed).slow / (300 * DAY) for seed in range(20)]
    noise = 4 * float(np.std(slow)) / sqrt(len(slow))
    assert np.mean(slow) == pytest.approx(lost_share(*causes), abs=noise + 2e-4)


def test_the_worst_of_several_decides() -> None:
    share = {1.0: 0.0, 1.25: 0.0, 2.0: 0.0}
    length = 3000 * DAY
    for seconds, factor in drawn((DEVICE, LINK), length, 1).pieces(0.0, length):
        share[factor] += seconds / length
    with_link = 1.0 - exp(-LINK.per_second * LINK.seconds)
    with_device = 1.0 - exp(-DEVICE.per_second * DEVICE.seconds)
    assert share[2.0] == pytest.approx(with_link, rel=0.05)
    assert share[1.25] == pytest.approx((1.0 - with_link) * with_device, rel=0.05)


@given(
    work=st.integers(1, 9),
    still=st.integers(0, 4),
    per_disk=st.integers(1, 3),
    lag=st.integers(0, 7),
    pieces=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 3, 4])), max_size=5),
)
@examples(3, derandomize=True)
def test_a_slow_span_is_what_counting_ticks_gives(work, still, per_disk, lag, pieces) -> None:
    """In exact fractions: a tick of a piece does 1/factor of a tick of work, or a tick of standing still."""
    tick = Fraction(1, 2)
    worked = saving = place = Fraction(0)
    finished: list[Fraction] = []
    now = Fraction(0)
    for seconds, factor in pieces:
        for _ in range(int(seconds / tick)):
            left = tick
            now += tick
            while left > 0:
                if place < work:
                    step = min(left, (work - place) * factor)
                    place, worked = place + step / factor, worked + step / factor
                else:
                    step = min(left, work + still - place)
                    place, saving = place + step, saving + step
                left -= step
                if place == work + still:
                    place = Fraction(0)
                    finished.append(now - left)
    found = slowed(Cycle(work, still, per_disk, lag, in_memory=False), pieces)
    assert found.worked == pytest.approx(float(worked))
    assert found.saving == pytest.approx(float(saving))
    assert found.slow == pytest.approx(float(now - worked - saving))
    # thirds are rounded: what is finished at the very end may count or not
    near = {sum(at <= now + shift for at in finished) for shift in (-1e-6, 1e-6)}
    assert found.cycles in near
    whole = {sum(at + lag <= now + shift for at in finished) // per_disk * per_disk for shift in (-1e-6, 1e-6)}
    assert found.on_disk in whole


def test_a_found_device_costs_a_restart_and_no_work() -> None:
    plan = replace(FAILING, host_failures_per_second=0.0, job_failures_per_second=0.0, slowdowns=(DEVICE,))
    for policy in (Policy("sync", 1000.0), Policy("async", 1000.0), Policy("memory", 100.0)):
        found = run(plan, policy, 100 * DAY, 3)
        restart = 300.0 + (2.0 if policy.mode == "memory" else 7.0)
        assert found.lost == found.stops == 0
        assert found.replaced > 100
        assert found.restarting == pytest.approx(found.replaced * restart, abs=restart)
        told = Prediction(plan, policy, 100 * DAY, (found,), chosen=False).figures()
        assert (told["restart_seconds"], told["restart_from_files_seconds"]) == (restart, 307.0)


def test_without_spares_replacing_waits() -> None:
    plan = replace(HEALTHY, slowdowns=(DEVICE,))
    few, enough = (run(plan, Policy("sync", 1000.0, spares=n), 60 * DAY, 1) for n in (0, 50))
    assert few.waiting > 0.5 * few.total
    assert enough.waiting == 0.0


def test_finding_sooner_never_loses() -> None:
    plan = replace(FAILING, slowdowns=(DEVICE, LINK))
    shares = [
        predict(
            replace(plan, slowdowns=found_after(plan.slowdowns, after)), Policy("async", 600.0), 60 * DAY, seeds=10
        ).figures()["goodput"]["mean"]
        for after in (60.0, 3600.0, 36000.0)
    ]
    assert shares[0] > shares[1] > shares[2]


def test_how_slow_is_what_the_twin_simulates() -> None:
    alone = load_job(
        {
            "model": {"preset": "gpt2", "layers": 2},
            "machine": "dgx-h100",
            "ranks": 1,
            "grid": {"data": 1},
            "batch": {"sequences": 4, "micro_sequences": 4},
        }
    )
    device, link = slowdowns_of(simulate(alone))
    assert max(device.factors) == pytest.approx(1.2, rel=0.02)  # one device computes, and launches
    assert max(device.factors) < 1.2
    assert set(link.factors) == {1.0}  # and needs no network
    assert device.per_second == pytest.approx(1 / (18824 * DAY))
    many = load_job(
        {
            "model": "gpt-5b",
            "machine": "dgx-h100",
            "ranks": 64,
            "grid": {"z": 64},
            "batch": {"sequences": 64, "micro_sequences": 1},
        }
    )
    device, link = slowdowns_of(simulate(many))
    assert 1.0 < min(device.factors) <= max(device.factors) <= 1.2
    assert 1.0 < min(link.factors) <= max(link.factors) <= 2.0
    assert link.per_second == pytest.approx(8 / (2633 * DAY))


def test_slow_parts_are_added_to_those_that_are_there() -> None:
    job = load_job(
        {
            "model": "gpt-5b",
            "machine": "dgx-h100",
            "ranks": 16,
            "grid": {"z": 16},
            "batch": {"sequences": 16},
            "stragglers": [{"rank": 8, "slowdown": 3.0}],
            "degraded": [{"node": 1, "nic": 0, "rate": 0.1}],
        }
    )

    def slow(rank: int) -> list[tuple[int, float]]:
        return [(s.rank, s.slowdown) for s in with_slow_device(job, rank, 1.2).stragglers]

    def degraded(nic: int) -> list[tuple[int | None, float]]:
        return [(d.nic, d.rate) for d in with_slow_link(job, 1, nic, 0.5).degraded]

    assert slow(8) == [(8, 3.0)]
    assert slow(9) == [(8, 3.0), (9, 1.2)]
    assert degraded(0) == [(0, 0.1)]
    assert degraded(1) == [(0, 0.1), (1, 0.5)]


def test_where_a_part_is_decides_on_uneven_grids() -> None:
    """Of 8 places as many steps are simulated as there are kinds of places; each event has the factor of one."""
    job = load_job(
        {
            "model": {"preset": "gpt-60b", "layers": 2},
            "machine": "alps",
            "ranks": 24,
            "grid": {"z": 8, "y": 3},
            "batch": {"sequences": 8, "micro_sequences": 1},
        }
    )
    device, link = slowdowns_of(simulate(job))
    assert len(device.factors) == len(link.factors) == 8
    assert len(set(link.factors)) > 1
    seen = {factor for _, factor in drawn((replace(link, per_second=1e-3),), 100 * DAY, 1).pieces(0, 100 * DAY)}
    assert seen == {1.0, *link.factors}


@pytest.mark.full
def test_the_command_tells_slow_time_and_what_finding_sooner_is_worth(cli: Cli) -> None:
    few = ("goodput", cli.job, "--seeds=6", "--interval=10min", "--days=60")
    as_is, healthy, sooner = (cli.json(*few, *more) for more in ((), ("--no-slow",), ("--detect=1min",)))
    assert set(as_is["parts"]) == set(PARTS)
    assert sum(as_is["parts"].values()) == pytest.approx(1.0)
    assert as_is["parts"]["slow"] > 0.0 == healthy["parts"]["slow"]
    assert healthy["slowdowns"] == {}
    assert as_is["slowdowns"]["device"]["seconds"] == 3600.0
    gained = sooner["goodput"]["mean"] - as_is["goodput"]["mean"]
    assert sooner["detect"]["goodput_gained"] == pytest.approx(gained)
    assert sooner["detect"]["instead_of_seconds"] == 3600.0
    out = cli(*few, "--detect=1min")[0]
    assert "in place of 1 h" in out
    assert "slowed by a device" in out


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("--detect=soon", "--detect"),
        ("--detect=5", "--detect"),
        ("--set=machine.reliability.slow_device.slowdown=0.5", "slowdown"),
        ("--set=machine.reliability.slow_device.between=0 s", "between"),
        ("--set=machine.reliability.slow_link.rate=0", "rate"),
        ("--set=machine.reliability.slow_device.between=10 s", "slow_device.between"),
        ("--set=machine.reliability.slow_link.between=1 us", "--days"),
    ],
)
def test_impossible_slowdowns_are_refused(cli: Cli, option: str, word: str) -> None:
    assert word in cli.refused("goodput", cli.job, option)


def test_nothing_can_be_detected_where_nothing_becomes_slow(cli: Cli) -> None:
    assert "--no-slow" in cli.refused("goodput", cli.job, "--detect=1min", "--no-slow")
    assert "slow_device" in cli.refused(
        "goodput", cli.job, "--detect=1min", "--set=machine.reliability.slow_device=null"
    )
