"""Culprits in made-up runs are named, healthy runs are let alone, and statistics are what they are called."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnose.observations import (
    STEP,
    TRANSFER,
    expectation,
    healthy,
    job_on,
    members,
    with_slow_host_link,
    with_slow_ranks,
)
from tests.profiles import examples
from tests.tiers import few, full
from twin.diagnose.devices import slow_devices
from twin.diagnose.diagnose import Diagnosis, diagnose, nic_of_rank
from twin.diagnose.finding import CERTAIN
from twin.diagnose.links import slow_links
from twin.diagnose.loading import slow_loading
from twin.diagnose.observed import Observed, groups_of_ranks
from twin.diagnose.probe import Probe
from twin.diagnose.robust import chance_of_more, scale
from twin.engine.simulate import simulate
from twin.strategies import load_job
from twin.strategies.four_d.grid import AXES, Grid

GRID = Grid(data=2, z=2, y=2, x=2)
LARGE = Grid(data=4, z=8, y=2, x=2)
PER_HOST = 8


def told(observed: Observed, **more: object) -> Diagnosis:
    return diagnose(observed, job_on(observed.grid), expectation(observed), **more)  # type: ignore[arg-type]  # as given


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8, 30, 199])
@pytest.mark.parametrize("score", [0.0, 0.5, 2.0, 6.0])
def test_students_distribution_is_the_integral_of_its_density(score, freedom):
    scale_ = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    x = np.linspace(0, score, 20_001)
    inside = np.trapezoid(scale_ * (1 + x**2 / freedom) ** (-(freedom + 1) / 2), x)
    assert chance_of_more(score, freedom) == pytest.approx(0.5 - inside, abs=1e-8)
    assert chance_of_more(-score, freedom) == pytest.approx(0.5 + inside, abs=1e-8)


def test_the_scale_is_the_standard_deviation_of_normal_values_and_outliers_do_not_move_it():
    values = 3.0 * np.random.default_rng(1).standard_normal(20_000)
    assert float(scale(values)) == pytest.approx(3.0, rel=0.03)
    values[:1000] = 1e9
    assert float(scale(values)) == pytest.approx(3.0, rel=0.1)


@pytest.mark.full
@given(sizes=st.tuples(*[st.integers(1, 3)] * 4))
def test_groups_are_those_found_by_trying_all_ranks(sizes):
    grid = Grid(**dict(zip(("data", "z", "y", "x"), sizes, strict=True)))
    for axis in AXES:
        number = groups_of_ranks(grid, axis)
        for rank in range(grid.ranks):
            assert np.flatnonzero(number == number[rank]).tolist() == members(grid, rank, axis)


@pytest.mark.parametrize(
    ("sizes", "per_host"), few([((4, 1, 1, 1), 2), ((2, 2, 2, 2), 2), ((8, 4, 2, 2), 4)], ((4, 1, 1, 1), 2))
)
@pytest.mark.parametrize(("steps", "noise"), full([(1, 0.05), (3, 0.1), (8, 0.05)], (1, 0.05), (8, 0.05)))
def test_healthy_runs_are_let_alone(sizes, per_host, steps, noise):
    """Each kind of culprit is told from 99 % on: of 200 healthy runs few may raise an alarm, whatever their size."""
    grid = Grid(**dict(zip(AXES, sizes, strict=True)))
    job = job_on(grid)
    alarms = 0
    for seed in range(200):
        observed = healthy(grid, per_host, steps=steps, noise=noise, seed=seed)
        nics = nic_of_rank(observed, job)
        found = [
            *slow_devices(observed),
            *slow_links(observed, expectation(observed), nics, None, ()),
            *(each for each in slow_loading(observed) if each.confidence >= CERTAIN),
        ]
        alarms += bool(found)
    assert alarms <= 10


MIDDLE = Grid(data=8, z=16, y=1, x=1)


@pytest.mark.full
@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_healthy_runs_of_middle_size_are_let_alone(noise: float) -> None:
    """320 hypotheses, more than chances can be drawn for: of 600 runs one in a hundred may raise an alarm."""
    nics = nic_of_rank(healthy(MIDDLE, 4), job_on(MIDDLE, "alps"))
    alarms = 0
    for seed in range(600):
        observed = healthy(MIDDLE, 4, steps=1 + seed % 4, noise=noise, seed=seed)
        alarms += bool(slow_links(observed, expectation(observed), nics, None, ()))
    assert alarms <= 6


@pytest.mark.parametrize(("factor", "noise"), few([(2.0, 0.02), (2.0, 0.05), (8.0, 0.1)], (2.0, 0.02)))
def test_a_slow_nic_among_hundreds_is_found(factor: float, noise: float) -> None:
    """However small a chance must be among so many."""
    observed = healthy(MIDDLE, 4, noise=noise)
    transfer = {axis: took.copy() for axis, took in observed.transfer.items()}
    for axis, took in transfer.items():
        took[:, members(MIDDLE, 12, axis)] *= factor
    nics = nic_of_rank(observed, job_on(MIDDLE, "alps"))
    found = slow_links(replace(observed, transfer=transfer), expectation(observed), nics, None, ())
    assert [(each.hosts, each.ranks) for each in found] == [((3,), (12,))]
    assert found[0].slowdown == pytest.approx(factor, rel=0.15)


@pytest.mark.parametrize(("sizes", "per_host", "hosts"), [((8, 1, 1, 1), 4, 1), ((2, 2, 2, 2), 4, 2)])
def test_half_of_the_ranks_slow(sizes, per_host, hosts):
    """No median tells who is healthy then."""
    grid = Grid(**dict(zip(AXES, sizes, strict=True)))
    observed = with_slow_ranks(healthy(grid, per_host), range(per_host * hosts), 3.0)
    found = slow_devices(observed)
    assert [(each.kind, each.hosts) for each in found] == [("host", (host,)) for host in range(hosts)]
    assert found[0].slowdown == pytest.approx(3.0, rel=0.1)


def test_one_host_of_two_became_slow():
    before, after = (healthy(Grid(data=8, z=1, y=1, x=1), 4, seed=seed) for seed in (1, 2))
    found = slow_devices(with_slow_ranks(after, range(4), 1.5), before)
    assert [(each.kind, each.hosts) for each in found] == [("host", (0,))]


def test_stalls_that_come_now_and_then_are_told_if_others_have_none():
    observed = healthy(GRID, 2, steps=30)
    assert observed.loading is not None
    loading = observed.loading.copy()
    loading[::6, 5] += 0.5
    (found,) = [e for e in slow_loading(replace(observed, loading=loading)) if e.confidence >= CERTAIN]
    assert found.ranks == (5,)
    loading[3::6, 7] += 0.5
    loading[2::6, 9] += 0.5
    loading[1::6, 11] += 0.5
    found_now = slow_loading(replace(observed, loading=loading))
    assert {each.ranks for each in found_now} == {(5,), (7,), (9,), (11,)}
    assert max(each.confidence for each in found_now) < found.confidence, "if many stall, one is less of a surprise"


def test_ranks_of_a_host_share_its_nics_as_its_devices_do():
    job = job_on(Grid(data=4, z=4, y=1, x=1))  # Frontier: four NICs for eight devices
    whole = nic_of_rank(healthy(Grid(data=4, z=4, y=1, x=1), 8), job)
    assert [len(set(whole[host * 8 : host * 8 + 8].tolist())) for host in range(2)] == [4, 4]
    assert set(nic_of_rank(healthy(Grid(data=4, z=4, y=1, x=1), 4), job).tolist()) == {0}, "nobody knows which"


def test_two_hosts_are_too_few_for_a_probe_and_it_says_so():
    found = told(healthy(Grid(data=8, z=1, y=1, x=1), 4), probe=probe_of(2, 0, 2.0))
    assert any("too few for a probe" in note for note in found.notes)


@examples(0.25)
@given(rank=st.integers(0, 15), factor=st.floats(1.6, 5.0), seed=st.integers(0, 1000))
def test_a_slow_rank_is_named(rank, factor, seed):
    found = told(with_slow_ranks(healthy(GRID, 2, seed=seed), [rank], factor)).findings
    assert [(each.kind, each.ranks, each.hosts) for each in found] == [("device", (rank,), (rank // 2,))]
    assert found[0].slowdown == pytest.approx(factor, rel=0.15)


@examples(0.3)
@given(host=st.integers(0, 7), factor=st.floats(1.7, 5.0), seed=st.integers(0, 1000))
def test_a_slow_host_is_named_and_not_each_of_its_ranks(host, factor, seed):
    ranks = [2 * host, 2 * host + 1]
    found = told(with_slow_ranks(healthy(GRID, 2, seed=seed), ranks, factor)).findings
    assert [(each.kind, each.hosts, each.ranks) for each in found] == [("host", (host,), tuple(ranks))]


@pytest.mark.full
@examples(0.3)
@given(host=st.integers(0, 15), factor=st.floats(1.5, 4.0), seed=st.integers(0, 1000))
def test_the_groups_tell_whose_link_is_slow(host, factor, seed):
    observed = with_slow_host_link(healthy(LARGE, PER_HOST, noise=0.03, seed=seed), host, factor)
    found = slow_links(observed, expectation(observed), nic_of_rank(observed, job_on(LARGE)), None, ())
    assert [each.kind for each in found] == ["link"]
    assert host in found[0].hosts
    assert len(found[0].hosts) <= 2
    assert found[0].slowdown == pytest.approx(factor, rel=0.15)


def probe_of(hosts: int, slow: int | None, factor: float, noise: float = 0.03) -> Probe:
    random, hops = np.random.default_rng(2), tuple(range(1, hosts))
    seconds = 0.04 * np.exp(noise * random.standard_normal((len(hops), hosts)))
    for row, hop in enumerate(hops):
        for to in range(hosts):
            if slow in {to, (to - hop) % hosts}:
                seconds[row, to] *= factor
    return Probe(1 << 20, hops, seconds)


@pytest.mark.parametrize("host", range(4))
def test_the_probe_tells_where_groups_cannot(host):
    """One axis over all hosts: every group crosses every link."""
    grid = Grid(data=8, z=1, y=1, x=1)
    observed = with_slow_host_link(healthy(grid, 2), host, 2.0)
    found = told(observed, probe=probe_of(4, host, 2.0)).findings
    assert [(each.kind, each.hosts) for each in found] == [("link", (host,))]
    assert "link" not in {each.kind for each in told(observed).findings}, "nobody can tell without"


def test_a_probe_of_healthy_links_names_nobody():
    assert told(healthy(GRID, 2), probe=probe_of(8, None, 1.0, noise=0.1)).healthy


def test_messages_of_a_host_that_is_slow_itself_do_not_accuse_its_link():
    observed = with_slow_ranks(healthy(GRID, 4), range(4), 3.0)
    found = told(observed, probe=probe_of(4, 0, 3.0)).findings
    assert [each.kind for each in found] == ["host"]


@pytest.mark.parametrize(("every", "steps"), [(1, 8), (2, 8)])
def test_a_rank_that_waits_for_data_is_named(every, steps):
    observed = healthy(GRID, 2, steps=steps)
    assert observed.loading is not None
    loading = observed.loading.copy()
    loading[::every, 5] += 0.2
    found = told(replace(observed, loading=loading)).findings
    assert [(each.kind, each.ranks) for each in found] == [("loading", (5,))]
    assert found[0].seconds == pytest.approx(0.2 / every, rel=0.1)


def test_loading_that_is_slow_everywhere_is_told_of_all():
    observed = healthy(GRID, 2)
    assert observed.loading is not None
    found = told(replace(observed, loading=observed.loading + 0.2)).findings
    assert [(each.kind, each.ranks, each.where) for each in found] == [("loading", (), "all ranks")]


def test_an_axis_that_is_slower_than_the_model_everywhere_is_told():
    observed = healthy(GRID, PER_HOST * 2)  # one host: no link
    slow = {**observed.transfer, "z": 3.0 * observed.transfer["z"]}
    found = told(replace(observed, transfer=slow)).findings
    assert [(each.kind, each.axis, each.yardstick) for each in found] == [("axis", "z", "the model")]
    assert found[0].slowdown == pytest.approx(3.0, rel=0.1)


def test_a_guessed_machine_accuses_no_axis_but_a_reference_does():
    observed = healthy(GRID, 16)
    slow = replace(observed, transfer={**observed.transfer, "z": 3.0 * observed.transfer["z"]})
    job, should = job_on(GRID, {"extends": "laptop", "nodes": 2}), expectation(observed)
    guessed = diagnose(slow, job, should)
    assert guessed.healthy
    assert any("assumed" in note for note in guessed.notes)
    (found,) = diagnose(slow, job, should, reference=observed).findings
    assert (found.kind, found.axis, found.yardstick) == ("axis", "z", "the reference")


@pytest.mark.full
def test_a_reference_takes_out_what_devices_are_by_nature():
    """Devices 10 % apart hide one that became 8 % slower; against themselves they do not."""
    spread = 1 + 0.1 * np.random.default_rng(3).random(LARGE.ranks)
    before, after = (healthy(LARGE, PER_HOST, noise=0.005, seed=seed) for seed in (1, 2))
    before = replace(before, compute=before.compute * spread)
    after = with_slow_ranks(replace(after, compute=after.compute * spread), [40], 1.08)
    assert told(after).healthy
    (found,) = told(after, reference=before).findings
    assert (found.kind, found.ranks) == ("device", (40,))


def test_the_worth_of_mending_is_what_the_twin_says():
    observed = with_slow_ranks(healthy(GRID, 8), [3], 2.0)
    (found,) = told(observed).findings
    job = job_on(GRID)
    slow = load_job(
        {**job.model_dump(mode="json", by_alias=True), "stragglers": [{"rank": 3, "slowdown": found.slowdown}]}
    )
    # the healthy step is the one handed over as expected
    saved = 1 - expectation(observed).step_seconds / simulate(slow).step_seconds
    assert found.saved_share == pytest.approx(max(0.0, saved))


def test_too_few_ranks_say_so():
    grid = Grid(data=2, z=1, y=1, x=1)
    found = told(with_slow_ranks(healthy(grid, 1), [1], 3.0))
    assert found.healthy
    assert any("too few" in note for note in found.notes)


def test_a_step_that_is_far_too_long_is_said_to_be_not_located() -> None:
    """A group over eight hosts is slow, and any of their links may be why: too many to name, but something is."""
    grid = Grid(data=4, z=8, y=1, x=1)
    observed = healthy(grid, 1)
    took = observed.transfer["z"].copy()
    took[:, members(grid, 0, "z")] *= 20.0
    step = observed.step_seconds + 19 * TRANSFER
    found = told(replace(observed, step_seconds=step, transfer={**observed.transfer, "z": took}))
    assert not found.findings
    assert not found.healthy
    assert found.not_located is not None
    assert found.not_located.slowdown == pytest.approx(float(np.median(step)) / STEP)
    assert "times as long as the twin says" in found.not_located.text
    assert found.as_json()["not_located"]["text"] == found.not_located.text


@pytest.mark.parametrize(
    ("factor", "said", "by_reference"), [(1.4, False, False), (1.8, False, True), (2.3, True, True)]
)
def test_how_much_longer_is_far_longer(factor: float, said: bool, by_reference: bool) -> None:
    observed = healthy(GRID, 16, noise=0.01)
    slow = replace(observed, step_seconds=factor * observed.step_seconds)
    assert (told(slow).not_located is not None) == said
    since = told(slow, reference=observed).not_located
    assert (since is not None) == by_reference
    assert since is None or "the reference's" in since.text


def test_by_a_guess_a_long_step_is_said_but_nobody_is_called_ill() -> None:
    observed = healthy(GRID, 16)
    slow = replace(observed, step_seconds=3.0 * observed.step_seconds)
    found = diagnose(slow, job_on(GRID, {"extends": "laptop", "nodes": 2}), expectation(observed))
    assert found.healthy
    assert found.not_located is not None
    assert "assumed" in found.not_located.text


def test_what_a_finding_does_not_explain_is_not_located() -> None:
    observed = with_slow_ranks(healthy(GRID, 8), [3], 2.0)
    (found,) = told(observed).findings
    assert found.saved_share is not None
    rest = told(replace(observed, step_seconds=20 * observed.step_seconds)).not_located
    assert rest is not None
    middle = float(np.median(observed.step_seconds))
    assert rest.slowdown == pytest.approx(20 * middle * (1 - found.saved_share) / STEP)
