"""Folded and unfolded runs of the SimPy engine agree: every event of every rank."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.tiers import few
from twin.description.job import Job
from twin.engine import pricing
from twin.engine.program import START
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.schedule.ops import axis_of

RELATIVE = 1e-9
MAX_RANKS = 64
MAX_ON_CORES = 12


def assumed(value: float | str) -> dict[str, Any]:
    return {"value": value, "kind": "assumed", "source": "test"}


@st.composite
def grids(draw: st.DrawFn) -> dict[str, int]:
    """Grids of up to 64 ranks, axes in random order of choice so that none is always large."""
    left, grid = MAX_RANKS, {}
    for axis in draw(st.permutations(["data", "z", "y", "x"])):
        grid[axis] = draw(st.integers(1, min(left, 8)))
        left //= grid[axis]
    return grid


@st.composite
def machines(draw: st.DrawFn) -> str | dict[str, Any]:
    """Real machines and variants of them whose links are narrow and shared."""
    base = draw(st.sampled_from(["frontier", "perlmutter", "alps", "dgx-a100"]))
    if draw(st.integers(0, 3)) == 0:
        return base
    network: dict[str, Any] = {"nodes_per_switch": draw(st.integers(1, 4))}
    if draw(st.booleans()):
        network["group_nodes"] = draw(st.integers(1, 3))
        network["group_bandwidth"] = assumed(draw(st.sampled_from(["40 MB/s", "1 GB/s", "30 GB/s"])))
        network["group_latency"] = assumed("1 us")
    machine: dict[str, Any] = {
        "extends": base,
        "nic": {"bandwidth": draw(st.sampled_from(["30 MB/s", "700 MB/s", "25 GB/s"]))},
        "network": network,
        "variation": {
            "compute_slowdown": draw(st.sampled_from([0.0, 0.19, 0.5])),
            "collective_slowdown": draw(st.sampled_from([0.0, 0.3, 1.2])),
        },
    }
    if base == "dgx-a100" and draw(st.booleans()):
        machine["fabric"] = {"port_bandwidth": "1 GB/s"}
    if draw(st.booleans()):  # one NIC for all devices of a node, or one for each
        devices = list(range(4 if base in {"perlmutter", "alps"} else 8))
        shared = draw(st.booleans())
        machine["nic"]["devices"] = [devices] if shared else [[d] for d in devices]
    if draw(st.booleans()):  # a test bed: CPU cores shared by ranks and by their collectives
        machine["cores"] = {
            "count": assumed(draw(st.sampled_from([1, 2, 7]))),
            "shared_by": draw(st.sampled_from(["node", "machine"])),
        }
        library = {"perlmutter": "nccl", "frontier": "rccl", "alps": "nccl", "dgx-a100": "nccl"}
        machine["libraries"] = {
            library[base]: {
                "host_work": {
                    "message_seconds": assumed("3 us"),
                    "local_bytes_per_second": assumed("2 GB/s"),
                    "network_bytes_per_second": assumed("1 GB/s"),
                    "reduce_bytes_per_second": assumed("4 GB/s"),
                }
            }
        }
    return machine


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    grid = draw(grids())
    ranks = grid["data"] * grid["z"] * grid["y"] * grid["x"]
    machine = draw(machines())
    if ranks > MAX_ON_CORES and isinstance(machine, dict):
        machine.pop("cores", None)  # every rank's compute is a flow then: slow to unfold
    base = machine if isinstance(machine, str) else machine["extends"]
    libraries = [None, "pccl"] if base in {"frontier", "perlmutter"} else [None]
    slow = st.fixed_dictionaries(
        {"rank": st.integers(0, ranks - 1), "slowdown": st.sampled_from([1.0, 1.01, 1.3, 2.0, 7.0])}
    )
    return {
        "grid": grid,
        "machine": machine,
        "library": draw(st.sampled_from(libraries)),
        "per_rank": draw(st.integers(1, 3)),
        "recompute": draw(st.booleans()),
        "cache_gathered_layers": draw(st.integers(0, 2)),
        "gather_unit": draw(st.sampled_from(["linear", "block"])),
        "overrides": (
            f"model.activation={draw(st.sampled_from(['gelu', 'swiglu']))}",
            f"model.positions={draw(st.sampled_from(['learned', 'rotary']))}",
        ),
        "attention": draw(st.sampled_from(["flash", "plain"])),
        "slowest_device": draw(st.booleans()),
        "overlap": {
            "all_reduce": draw(st.booleans()),
            "reduce_scatter": draw(st.booleans()),
            "all_gather": draw(st.booleans()),
            "prefetch_depth": draw(st.integers(1, 5)),
        },
        "data_reduction": {
            "mode": draw(st.sampled_from(["one_bucket", "overlapped", "sharded", "sharded_overlapped"])),
            "bucket_bytes": draw(st.sampled_from(["1 KiB", "8 MiB"])),
        },
        "stragglers": draw(st.lists(slow, max_size=3, unique_by=lambda s: s["rank"])),
    }


def both(job: Job) -> tuple[Simulation, Simulation]:
    return simulate(job), simulate(job, engine="des")


def agree(folded: Simulation, unfolded: Simulation) -> None:
    """Compare start, end and arrival of every op on every rank, and the figures."""
    assert unfolded.partition.rank_classes == unfolded.job.ranks
    for what in ("start", "end", "arrival"):
        short = getattr(folded.timeline, what)[folded.partition.rank_class]
        full = getattr(unfolded.timeline, what)[unfolded.partition.rank_class]
        assert short.shape == (folded.job.ranks, len(folded.program))
        np.testing.assert_allclose(short, full, rtol=RELATIVE, atol=1e-18, err_msg=what)
    one, other = report(folded), report(unfolded)
    for what in ("step_seconds", "compute_seconds", "exposed_seconds", "idle_seconds", "energy_joules"):
        expected = getattr(other, what)
        close = pytest.approx(expected, rel=RELATIVE, abs=RELATIVE * other.step_seconds)
        assert getattr(one, what) == close
    assert one.exposed_by_axis == pytest.approx(other.exposed_by_axis, rel=1e-7, abs=RELATIVE * other.step_seconds)


def check(make_job, chosen: dict[str, Any]) -> None:
    agree(*both(make_job(**chosen)))


@given(chosen=jobs())
@examples(0.4, derandomize=True)
def test_folding_changes_no_event(make_job, chosen) -> None:
    check(make_job, chosen)


@pytest.mark.slow
@given(chosen=jobs())
@examples(4, derandomize=True)
def test_folding_changes_no_event_in_many_jobs(make_job, chosen) -> None:
    check(make_job, chosen)


def test_ranks_on_one_core_stay_together(make_job) -> None:
    """Rests of rounding were planned as times of their own, and doubled with every op: 6e-7 of the time after 1,400."""
    machine = {
        "extends": "frontier",
        "nic": {"bandwidth": "30 MB/s", "devices": [[device] for device in range(8)]},
        "network": {"nodes_per_switch": 3, "group_nodes": 1, "group_bandwidth": assumed("40 MB/s")},
        "variation": {"compute_slowdown": 0.0, "collective_slowdown": 0.0},
        "cores": {"count": assumed(1), "shared_by": "machine"},
        "libraries": {
            "rccl": {
                "host_work": {
                    "message_seconds": assumed("3 us"),
                    "local_bytes_per_second": assumed("2 GB/s"),
                    "network_bytes_per_second": assumed("1 GB/s"),
                    "reduce_bytes_per_second": assumed("4 GB/s"),
                }
            }
        },
    }
    overlap = {"all_reduce": False, "reduce_scatter": False, "all_gather": False}
    check(
        make_job,
        {"grid": {"x": 2, "data": 6}, "machine": machine, "per_rank": 3, "recompute": False, "overlap": overlap},
    )


NARROW = {
    "extends": "frontier",
    "nic": {"bandwidth": "300 MB/s"},
    "network": {"group_nodes": 2, "group_bandwidth": "500 MB/s"},
    "variation": {"collective_slowdown": 0.4},
}


CONTENDING = (
    {"data": 4, "z": 4, "y": 2, "x": 2},
    {"data": 3, "z": 5, "x": 4},
    {"data": 2, "z": 6, "y": 5},
    {"z": 7, "y": 3, "x": 3},
    {"data": 7, "y": 3, "x": 2},
)


@pytest.mark.parametrize("grid", few(CONTENDING, CONTENDING[1]), ids=str)
@pytest.mark.parametrize("slow", [(), (5,), (0, 13, 14)], ids=str)
def test_folding_under_contention(make_job, grid, slow) -> None:
    """On narrow links, where collectives do stretch each other (asserted)."""
    stragglers = [{"rank": r, "slowdown": 1.2 + 0.1 * i} for i, r in enumerate(slow)]
    job = make_job(grid, NARROW, stragglers=stragglers)
    folded, unfolded = both(job)
    agree(folded, unfolded)
    program, partition, prices = unfolded.program, unfolded.partition, unfolded.prices
    stretched = 0
    for op in np.flatnonzero(np.array(program.code) == START):
        call = program.target[op]
        axis = axis_of(program.calls[call][0])
        for rank in range(job.ranks):
            group = partition.groups[axis][partition.group_class_of_rank_class[axis][rank]]
            cost = prices.costs[call][group.pattern]
            took = unfolded.timeline.end[rank, op] - unfolded.timeline.start[rank, op]
            assert took >= cost.seconds * (1 - 1e-9)
            stretched += took > cost.startup_seconds + cost.transfer_seconds * 1.4 * (1 + 1e-6)
    assert stretched > 0, "no collective shared a link with another"


@pytest.mark.parametrize("axis", ["x", "y"])
def test_groups_that_cost_the_same_but_weigh_differently_stay_apart(make_job, axis) -> None:
    """Groups of three on nodes of eight: equal times by the NIC, but other links are busier.

    A flow's share of a contended link depends on its rate on its busiest one.
    """
    machine = {"extends": "frontier", "nic": {"bandwidth": "30 MB/s"}}
    agree(*both(make_job({"data": 2, "z": 4, axis: 3}, machine)))


@given(chosen=jobs())
@examples(0.3, derandomize=True)
def test_links_that_are_left_out_never_mattered(make_job, chosen) -> None:
    """Resources that cannot bind are dropped before folding; with all of them nothing changes."""
    job = make_job(**chosen)
    usual = simulate(job, engine="des")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pricing, "_only", lambda edges, _binding: edges)
        every = simulate(job, engine="des")
    for what in ("start", "end", "arrival"):
        np.testing.assert_allclose(
            getattr(usual.timeline, what), getattr(every.timeline, what), rtol=RELATIVE, atol=1e-18, err_msg=what
        )


def test_symmetric_ranks_fold_and_a_straggler_unfolds_little(make_job) -> None:
    grid = {"data": 4, "z": 4, "y": 2, "x": 2}
    even = simulate(make_job(grid))
    assert even.partition.rank_classes <= 8
    slow = simulate(make_job(grid, stragglers=[{"rank": 9, "slowdown": 1.5}]))
    assert even.partition.rank_classes < slow.partition.rank_classes <= 32


def test_the_largest_machine_folds_to_few_classes(make_job) -> None:
    options: dict[str, Any] = {"grid": {"data": 16, "z": 512, "y": 2, "x": 2}, "machine": "frontier"}
    whole = simulate(make_job(**options)).partition
    assert np.bincount(whole.rank_class).sum() == 32768
    assert whole.rank_classes <= 32
    slow = simulate(make_job(**options, stragglers=[{"rank": 12345, "slowdown": 1.3}])).partition
    assert slow.rank_classes <= 512
    assert np.sum(slow.rank_class == slow.rank_class[12345]) == 1
