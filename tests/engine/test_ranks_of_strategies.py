"""The all-ranks engine beyond 4D's own axes: `fsdp`'s groups along several, and a rank's own copies and updates."""

import itertools
from typing import Any

import numpy as np
import pytest

from tests.engine.test_ranks import same_with_chance, same_without_chance
from tests.tiers import few
from twin.description.job import Job
from twin.engine.all_ranks import cube_of_job, drawn, simulate_ranks
from twin.engine.differences import differences
from twin.engine.report import report_all_ranks
from twin.engine.seeds import rank_table
from twin.engine.simulate import simulate
from twin.schedule.ops import OWN_STREAMS, axis_of
from twin.strategies import load_job

MODEL = {"layers": 3, "hidden": 1024, "heads": 8, "sequence": 256, "vocabulary": 2048}
SMALL = {"sub_group_elements": 2_000_000}
OFFLOADS: dict[str, dict[str, Any] | None] = {
    "nothing": None,
    "optimizer": {"optimizer": SMALL},
    "interleaved": {"optimizer": {"stride": 2, **SMALL}},
    "activations": {"activations": "host"},
    "everything": {"optimizer": SMALL, "parameters": "host", "activations": "host"},
}
FOUR_D: list[dict[str, int]] = [{"data": 2, "z": 2}, {"z": 2, "y": 2, "x": 2}, {"data": 4, "x": 2}]
FSDP: list[dict[str, int]] = [{"weights": 4}, {"data": 2, "weights": 4}, {"weights": 4, "tensor": 2}]
ZERO: list[dict[str, int]] = [{"gradients": 2, "weights": 4}, {"optimizer": 4, "gradients": 2}, {"optimizer": 8}]
CHANCES: tuple[dict[str, float], ...] = (
    {},
    {"machine.variation.compute_jitter.value": 0.4},
    {"machine.variation.device_speed_spread": 0.6, "machine.variation.network_noise": 0.5},
)
STRAGGLER = ({"rank": 1, "slowdown": 1.3},)


def described(strategy: str, grid: dict[str, int], where: str, chance: dict[str, float], **options: Any) -> Job:
    ranks = int(np.prod(list(grid.values())))
    flavour = {"flavour": "deepspeed"} if strategy == "fsdp" else {}
    job = {
        "strategy": strategy,
        "model": MODEL,
        "machine": "4xh100",
        "ranks": ranks,
        "grid": grid,
        "recompute": True,
        "batch": {"sequences": 2 * ranks, "micro_sequences": 1},
        "offload": OFFLOADS[where],
        **flavour,
        **options,
    }
    return load_job(job, [f"{key}={value}" for key, value in chance.items()])


CASES = [*itertools.product(["four_d"], FOUR_D, OFFLOADS), *itertools.product(["fsdp"], FSDP, OFFLOADS)]


@pytest.mark.parametrize(("strategy", "grid", "where"), few(CASES, *CASES[::8]), ids=str)
def test_without_chance_it_is_the_folded_engine(strategy, grid, where) -> None:
    """Ranks of a socket share its memory; one of them is slow."""
    same_without_chance(described(strategy, grid, where, {}))
    same_without_chance(described(strategy, grid, where, {}, stragglers=STRAGGLER))


@pytest.mark.parametrize(
    ("case", "chance"),
    few(list(itertools.product(CASES, CHANCES)), *((case, CHANCES[i % 3]) for i, case in enumerate(CASES[::6]))),
    ids=str,
)
def test_with_chance_it_is_the_simpy_engine(case, chance) -> None:
    same_with_chance(described(*case, chance))


SHARING = [case for case in CASES if case[2] != "nothing"]


@pytest.mark.parametrize(("strategy", "grid", "where"), few(SHARING, SHARING[0], SHARING[-1]), ids=str)
def test_where_ranks_share_a_host_it_is_close_to_the_simpy_engine(strategy, grid, where) -> None:
    """Its memory is shared as in the folded simulation, whoever is at work: at most 1.8 % off in 24 such steps.

    0.1 % where one thing at a time uses it; more where gradients come and weights go while the host updates others.
    """
    job = described(strategy, grid, where, CHANCES[1])
    every, cube = simulate_ranks(job), cube_of_job(job)
    same = differences(every.nominal, cube, drawn(job, cube, job.seed))
    expected = simulate(job, engine="des", differences=same).step_seconds
    assert every.step_seconds == pytest.approx(expected, rel=0.02)


HOPS: list[dict[str, Any]] = [
    {"grid": {"weights": 8}, "secondary": 4},
    {"grid": {"weights": 8}, "secondary": 2, "quantized_weights": True},
    {"grid": {"data": 2, "weights": 8}, "secondary": 4},
    {"grid": {"weights": 8}, "quantized_gradients": True},
    {"grid": {"gradients": 4, "weights": 2}, "quantized_gradients": True},
    {"grid": {"optimizer": 2, "gradients": 2, "weights": 4}, "secondary": 2, "quantized_gradients": True},
    {"grid": {"weights": 16}, "secondary": 4, "quantized_gradients": True},
]
"""hpZ and qgZ of ZeRO++: groups that are parts of an axis, or lie across two."""
WITH_CHANCE = [(each, CHANCES[i % 3]) for i, each in enumerate(HOPS)]


@pytest.mark.parametrize("options", few(HOPS, *HOPS[::3]), ids=str)
def test_groups_that_are_parts_of_axes(options: dict[str, Any]) -> None:
    job = described("fsdp", where="nothing", chance={}, **options)
    assert len(cube_of_job(job).sizes) > len(job.concrete_grid.mesh.sizes)
    same_without_chance(job)
    same_without_chance(described("fsdp", where="nothing", chance={}, stragglers=STRAGGLER, **options))
    table = rank_table(simulate_ranks(job))
    assert table.column("weights").to_pylist() == [rank % options["grid"]["weights"] for rank in range(job.ranks)]


@pytest.mark.parametrize(("options", "chance"), few(WITH_CHANCE, *WITH_CHANCE[1::3]), ids=str)
def test_groups_that_are_parts_of_axes_with_chance(options: dict[str, Any], chance: dict[str, float]) -> None:
    same_with_chance(described("fsdp", where="nothing", chance=chance, **options))


def test_waits_for_copies_are_told_by_what_makes_them() -> None:
    job = described("four_d", {"data": 2, "z": 2}, "optimizer", {})
    every = simulate_ranks(job, random=False)
    figures = report_all_ranks(every)
    booked = {axis_of(name) for name in OWN_STREAMS}
    assert figures.exposed_by_axis["down"] > 0.0
    assert figures.exposed_by_axis["cpu"] > 0.0
    assert sum(figures.exposed_by_axis.values()) == pytest.approx(figures.exposed_seconds)
    assert {"exposed_down_seconds", "exposed_cpu_seconds"} <= set(rank_table(every).column_names)
    assert not sum(seconds for axis, seconds in figures.peers_by_axis.items() if axis in booked)
    folded = simulate(job)
    assert figures.step_seconds == pytest.approx(folded.step_seconds, rel=1e-9)
