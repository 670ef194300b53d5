"""`grid: auto` and `micro_sequences: auto`: all factorizations, the ten best, their fastest."""

from itertools import product
from typing import Any

import pytest

from twin.cost.memory import largest_micro_sequences, memory_use, with_micro_sequences
from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.engine.report import as_json, report
from twin.engine.simulate import simulate
from twin.search import choose as choose_module
from twin.search.candidates import candidates as all_candidates
from twin.search.candidates import on_grid
from twin.search.choose import CANDIDATES, candidates, choose, with_grid
from twin.strategies import load_job, strategy_of
from twin.strategies.four_d.communication_model import communication_seconds
from twin.strategies.four_d.grid import Grid, factorizations
from twin.strategies.megatron.options import Options

MODEL = {"layers": 2, "hidden": 768, "heads": 12, "sequence": 256, "vocabulary": 8192}


def auto(ranks: int = 12, sequences: int = 24, *overrides: str, **options: Any) -> Job:
    described = {"model": MODEL, "machine": "perlmutter", "ranks": ranks, "batch": {"sequences": sequences}, **options}
    return load_job(described, overrides)


def leaves(gigabytes: float) -> tuple[str, str]:
    """Overrides that leave so much memory to tensors."""
    return f"machine.device.memory={1 + gigabytes} GB", "machine.device.reserved_memory=1 GB"


def feasible_by_trying(job: Job) -> dict[tuple[int, ...], int]:
    """Every grid that keeps the rules of section 3 and fits, with its largest micro-batch."""
    found = {}
    sizes = range(1, job.ranks + 1)
    for d, z, y, x in product(sizes, repeat=4):
        if d * z * y * x != job.ranks or 768 % x or 768 % y or 12 % y or job.batch.sequences % (d * z):
            continue
        local = job.batch.sequences // (d * z)
        placed = job.model_copy(update={"grid": Grid(data=d, z=z, y=y, x=x)})
        fitting = [
            m for m in range(1, local + 1) if local % m == 0 and memory_use(with_micro_sequences(placed, m)).fits
        ]
        if fitting:
            found[d, z, y, x] = max(fitting)
    return found


def test_the_factorizations_of_a_power_of_two_are_counted() -> None:
    """2¹⁵ into four ordered factors: 15 twos into four boxes, (15 + 3 over 3) = 816."""
    grids = {grid.sizes for grid in factorizations(2**15)}
    assert len(grids) == 816
    assert all(d * z * y * x == 2**15 for d, z, y, x in grids)


@pytest.mark.parametrize("gigabytes", [38.0, 0.3, 0.16, 0.08])
def test_candidates_are_all_feasible_grids(gigabytes) -> None:
    job = auto(12, 24, *leaves(gigabytes))
    expected = feasible_by_trying(job)
    ranked = candidates(job)
    found = {j.concrete_grid.sizes: j.concrete_micro_sequences for j in ranked}
    assert found == expected
    assert len(ranked) == len(found)
    keys = [communication_seconds(j, j.concrete_grid) for j in ranked]
    assert keys == sorted(keys)


def test_memory_decides_between_these_limits() -> None:
    """The sizes of the test above are real limits: fewer and fewer grids fit."""
    counts = [len(candidates(auto(12, 24, *leaves(g)))) for g in (38.0, 0.16, 0.08)]
    assert counts[0] > counts[1] > counts[2]


def test_the_best_is_the_fastest_of_the_ten_best_ranked() -> None:
    job = auto(16, 32)
    choice = choose(job)
    ranked = candidates(job)
    assert choice.feasible == len(ranked) > CANDIDATES
    times = {j.concrete_grid.sizes: simulate(j).step_seconds for j in ranked[:CANDIDATES]}
    assert {s.job.concrete_grid.sizes: s.step_seconds for s in choice.simulations} == times
    assert choice.best.step_seconds == min(times.values())
    assert choice.best.job.is_concrete


def test_leaving_global_links_out_at_first_does_not_change_the_best(monkeypatch) -> None:
    """Candidates with many classes are tried without these links; the winner never is."""
    group = {"group_nodes": 1, "group_bandwidth": "1 GB/s"}
    narrow = {"extends": "perlmutter", "nic": {"bandwidth": "2 GB/s"}, "network": group}
    job = auto(16, 32, machine=narrow)
    full = {j.concrete_grid.sizes: simulate(j).step_seconds for j in candidates(job)[:CANDIDATES]}
    monkeypatch.setattr(choose_module, "MANY_CLASSES", 0)
    best = choose(job).best
    assert not best.global_links_left_out
    assert best.step_seconds == min(full.values())
    assert best.step_seconds == full[best.job.concrete_grid.sizes]


def test_fewer_candidates_can_be_asked_for() -> None:
    seen = []
    choice = choose(auto(16, 32), most=3, progress=lambda done, whole: seen.append((done, whole)))
    assert len(choice.simulations) == 3
    assert seen == [(0, 3), (1, 3), (2, 3)]


def test_a_given_grid_is_kept_and_its_micro_batch_found() -> None:
    job = auto(8, 16, grid={"data": 2, "z": 2, "x": 2})
    choice = choose(job)
    assert choice.feasible == 1
    assert choice.best.job.concrete_grid == job.concrete_grid
    assert choice.best.job.concrete_micro_sequences == largest_micro_sequences(job) == 4


def test_a_given_micro_batch_is_kept() -> None:
    job = auto(8, 16, batch={"sequences": 16, "micro_sequences": 2})
    ranked = candidates(job)
    assert {j.concrete_micro_sequences for j in ranked} == {2}
    assert all(16 // (j.concrete_grid.data * j.concrete_grid.z) % 2 == 0 for j in ranked)
    assert with_grid(job, Grid(data=8, z=1, y=1, x=1)) is not None
    assert with_grid(job, Grid(data=4, z=4, y=1, x=1)) is None


def test_nothing_fits_is_said_with_the_reason() -> None:
    with pytest.raises(DescriptionError, match=r"no grid of 4 ranks .* memory") as caught:
        choose(auto(4, 8, *leaves(0.001)))
    assert "MB more than the device has" in str(caught.value)
    with pytest.raises(DescriptionError, match="not even one sequence fits"):
        choose(auto(4, 8, *leaves(0.001), grid={"z": 4}))


def test_no_grid_divides_is_said() -> None:
    """Eleven ranks: neither 7 sequences nor 768 features nor 12 heads divide by 11. The nearest grid says so."""
    with pytest.raises(DescriptionError, match=r"no grid of 11 ranks .*; the nearest, .* 11 .*: .*(divide|multiple)"):
        choose(auto(11, 7))


def test_a_result_without_global_contention_says_so(make_job) -> None:
    """Where leaving it out keeps classes few, neither terminal nor JSON may hide it."""
    job = make_job(
        {"data": 3, "z": 4, "y": 3},
        machine="alps",
        per_rank=2,
        overrides=["machine.network.group_nodes=2", "machine.network.group_bandwidth=1 GB/s"],
    )
    full, few = simulate(job), simulate(job, max_classes=1)
    assert not full.global_links_left_out
    assert few.global_links_left_out
    assert few.partition.rank_classes < full.partition.rank_classes
    assert as_json(full, report(full), 0.0)["global_link_contention"] is True
    assert as_json(few, report(few), 0.0)["global_link_contention"] is False


def test_what_is_refused_is_not_chosen() -> None:
    job = auto()
    first = choose(job).best.job
    assert choose(job, refuse=lambda one: "no" if one.grid == first.grid else "").best.job.grid != first.grid
    with pytest.raises(DescriptionError, match="that could run are refused: not today"):
        choose(job, refuse=lambda _one: "not today")


def test_stages_that_are_given_allow_the_orders_that_have_so_many() -> None:
    """Uneven stages are tried with every schedule of as many; a rank's layers need not be equal."""
    described = {"strategy": "megatron", "flavour": "torch", "stage_layers": [2, 1], "grid": {"pipeline": 2}}
    job = load_job(
        {"model": MODEL | {"layers": 3}, "machine": "laptop", "ranks": 2, "batch": {"sequences": 8}} | described
    )
    found = [one.job(job).schedule for one in on_grid(job, job.concrete_grid, frozenset({"schedule"})) if one.feasible]
    assert set(found) == {"1f1b", "zb_h1"}


@pytest.mark.parametrize(("layers", "pipeline"), [(3, 2), (10, 4), (7, 3), (6, 2), (2, 4)])
def test_stages_that_cannot_be_equal_differ_by_a_layer(layers: int, pipeline: int) -> None:
    """Every number of chunks has its own stages; of fewer layers than stages there are none."""
    described = {"strategy": "megatron", "model": MODEL | {"layers": layers}, "machine": "perlmutter"}
    job = load_job(described | {"ranks": pipeline, "batch": {"sequences": 24}})
    grid = next(grid for grid in strategy_of(job).candidates(job) if grid.depth == pipeline)
    found = [one.job(job) for one in on_grid(job, grid, frozenset({"schedule"})) if one.feasible]
    assert bool(found) == (layers >= pipeline)
    for one in found:
        stages = [len(stage) for stage in one.layers_by_stage]
        assert sum(stages) == layers
        assert len(stages) == pipeline * one.chunks
        assert max(stages) - min(stages) <= 1
        assert min(stages) >= 1
        assert (one.stage_layers is None) == (max(stages) == min(stages))
        raw = dict[str, Any](described)
        Options.of(one).settle(raw)
        assert raw.get("stage_layers") == (None if one.stage_layers is None else list(one.stage_layers))
        assert Options.read(Options.of(one).as_json()) == Options.of(one)
    assert {"1f1b", "zb_h1"} <= {one.schedule for one in found} or not found
    assert ("zb_v" in {one.schedule for one in found}) == (layers >= 2 * pipeline)


@pytest.mark.parametrize(("sequences", "chosen"), [(6, 6), (3, None)])
def test_a_micro_batch_that_is_chosen_keeps_the_rules(sequences: int, chosen: int | None) -> None:
    """Halves want an even number; where a part of three sequences has none, the rule is named and not the memory."""
    shape = {"layers": 4, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 1024}
    raw = {"model": shape, "machine": "dgx-h100", "ranks": 2, "grid": {"y": 2}, "batch": {"sequences": sequences}}
    job = load_job({**raw, "overlap": {"halves": True}})
    if chosen is None:
        with pytest.raises(DescriptionError, match=r"must be even for overlap\.halves"):
            choose(job)
    else:
        assert choose(job).best.job.concrete_micro_sequences == chosen


def test_an_odd_micro_batch_that_fits_makes_place_for_an_even_one() -> None:
    shape = {"layers": 4, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 1024}
    raw = {"model": shape, "machine": "dgx-h100", "ranks": 2, "grid": {"y": 2}, "batch": {"sequences": 6}}
    job = load_job({**raw, "overlap": {"halves": True}})
    three = memory_use(with_micro_sequences(job, 3)).per_rank_bytes
    small = load_job({**raw, "overlap": {"halves": True}}, leaves(three * 1.001 / 1e9))
    assert largest_micro_sequences(small) == 2
    grids = {tuple(one.grid.sizes): one.micro_sequences for one in on_grid(small, small.concrete_grid) if one.feasible}
    assert list(grids.values()) == [2]


def test_of_a_strategy_without_a_model_of_its_own_the_likeliest_grids_are_simulated() -> None:
    """The first ten in the order of sizes have few replicas: on 64 H100 Llama 3 8B is slower on each of them."""
    job = load_job(
        {
            "strategy": "megatron",
            "flavour": "torch",
            "model": "llama-3-8b",
            "machine": "dgx-h100",
            "ranks": 64,
            "batch": {"sequences": 512},
        }
    )
    feasible = [each.job(job) for each in all_candidates(job) if each.feasible]
    assert len(feasible) > CANDIDATES
    every = min(simulate(each).step_seconds for each in feasible if each.micro_steps <= 64)
    assert choose(job).best.step_seconds <= every * 1.02
