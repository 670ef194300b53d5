"""Search: every grid and option there is, each simulated, in the order of simulated time."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.cost.memory import memory_use, with_micro_sequences
from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.description.units import format_memory
from twin.engine.energy import step_energy
from twin.engine.report import as_json, report
from twin.engine.simulate import simulate
from twin.search.candidates import candidates, unsettled
from twin.search.fleet import fleet_json, fleet_table, search_fleet
from twin.search.page import page, pareto
from twin.search.search import search
from twin.search.tables import search_json
from twin.search.words import model_words
from twin.show import search as show
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid
from twin.strategies.four_d.options import VARIED, Options

MODEL = {"layers": 2, "hidden": 768, "heads": 12, "sequence": 256, "vocabulary": 8192}


def made(ranks: int = 8, sequences: int = 16, *overrides: str, **options: Any) -> Job:
    described = {"model": MODEL, "machine": "perlmutter", "ranks": ranks, "batch": {"sequences": sequences}, **options}
    return load_job(described, overrides)


def leaves(gigabytes: float) -> tuple[str, str]:
    """Overrides that leave so much memory to tensors."""
    return f"machine.device.memory={1 + gigabytes} GB", "machine.device.reserved_memory=1 GB"


def grids(ranks: int) -> list[Grid]:
    sizes = range(1, ranks + 1)
    return [Grid(data=d, z=z, y=y, x=x) for d, z, y, x in product(sizes, repeat=4) if d * z * y * x == ranks]


def divides(grid: Grid, sequences: int) -> bool:
    """Section 3 of the algorithm for the model above."""
    return not (768 % grid.x or 12 % grid.y or 768 % grid.y or sequences % (grid.data * grid.z))


@pytest.mark.parametrize(("ranks", "gigabytes"), [(12, 38.0), (12, 0.16), (12, 0.08), (10, 38.0)])
def test_every_factorization_is_a_candidate_and_only_those_that_can_run_are_feasible(ranks, gigabytes):
    job = made(ranks, 24, *leaves(gigabytes))
    found = {c.grid.sizes: c for c in candidates(job)}
    assert set(found) == {grid.sizes for grid in grids(ranks)}
    for grid in grids(ranks):
        candidate = found[grid.sizes]
        placed = with_micro_sequences(job.model_copy(update={"grid": grid}), 1)
        if not divides(grid, 24):
            assert candidate.hindrance == "divisibility"
            assert "must" in candidate.reason
        elif not memory_use(placed).fits:
            assert candidate.hindrance == "memory"
            over = memory_use(placed).per_rank_bytes - memory_use(placed).capacity_bytes
            assert f"needs {format_memory(over, commas=True)} more" in candidate.reason
            assert memory_use(placed).largest_category in candidate.reason
        else:
            assert candidate.feasible
            assert not candidate.reason


def options_by_trying(grid: Grid, layers: int) -> set[tuple[object, ...]]:
    """Every setting of the options that makes another step on a grid, one entry each."""
    split, replicas, inside = grid.z > 1, grid.data > 1, grid.x * grid.y > 1
    return {
        one
        for one in product(
            (True, False),
            {0, layers // 4, layers // 2, layers} if split else {0},
            ("one_bucket", "overlapped", "sharded_overlapped") if replicas else ("one_bucket",),
            (True, False) if inside else (True,),
            (True, False) if split else (True,),
            (True, False) if split else (True,),
            (None, 1),
            (False, True) if inside else (False,),
            (True,) if split else (False,),
            *((True, False) if grid.x > 1 else (False,) for _ in ("attention", "mlp")),
            ("2d", "1d") if grid.x > 1 else ("2d",),
            ("nothing", "attention", "products"),
        )
        if (one[0] or (one[6] is None and one[12] == "nothing")) and not (one[11] == "1d" and (one[9] or one[10]))
    }


def test_all_options_are_varied_where_they_make_a_difference():
    job = made(4, 8)
    found: dict[tuple[int, ...], list[Options]] = {}
    for candidate in candidates(job, frozenset(VARIED)):
        found.setdefault(candidate.grid.sizes, []).append(candidate.options)
    for grid in grids(4):
        if divides(grid, 8):
            own = [
                (
                    *(o.recompute, o.cache_gathered_layers, o.data_reduction, o.all_reduce, o.reduce_scatter),
                    *(o.all_gather, o.recompute_layers, o.halves, o.across_blocks, o.attention, o.mlp, o.tensor),
                    o.recompute_keeps,
                )
                for o in found[grid.sizes]
            ]
            assert len(own) == len(set(own))
            assert set(own) == options_by_trying(grid, 2)


def test_micro_batches_are_the_largest_that_fit_and_the_next():
    job = made(4, 64, *leaves(0.45))
    found: dict[tuple[int, ...], list[int | None]] = {}
    for candidate in candidates(job, frozenset({"micro"})):
        if candidate.feasible:
            found.setdefault(candidate.grid.sizes, []).append(candidate.micro_sequences)
    assert found
    for sizes, micros in found.items():
        local = 64 // (sizes[0] * sizes[1])
        grid = Grid(data=sizes[0], z=sizes[1], y=sizes[2], x=sizes[3])
        placed = job.model_copy(update={"grid": grid})
        fit = [m for m in range(1, local + 1) if local % m == 0 and memory_use(with_micro_sequences(placed, m)).fits]
        assert sorted(micros) == fit[-3:]


def test_each_candidate_is_simulated_and_the_fastest_comes_first():
    job = made(8, 16)
    found = search(job, over=frozenset({"recompute"}))
    by_hand = []
    for candidate in candidates(unsettled(job), frozenset({"recompute"})):
        if candidate.feasible:
            placed = job.model_copy(update={"grid": candidate.grid, "recompute": candidate.options.recompute})
            by_hand.append(simulate(with_micro_sequences(placed, candidate.micro_sequences or 0)).step_seconds)
    simulated = [entry.figures.step_seconds for entry in found.entries if entry.figures]
    assert simulated == sorted(by_hand)
    assert found.simulated == found.feasible == len(by_hand)
    assert [entry.rank for entry in found.entries[: len(by_hand)]] == list(range(1, len(by_hand) + 1))
    assert sorted(e.model_rank for e in found.entries if e.model_rank) == list(range(1, len(by_hand) + 1))
    assert found.best.step_seconds == simulated[0]


@pytest.mark.process
def test_several_processes_find_the_same():
    one, two = (search(made(16, 32), workers=workers) for workers in (1, 2))
    assert one.entries == two.entries


@pytest.mark.full
def test_the_job_is_searched_whatever_it_fixes():
    open_, fixed = (search(made(8, 16, **o)) for o in ({}, {"grid": {"data": 8}}))
    assert open_.entries == fixed.entries


@pytest.mark.full
def test_by_the_published_model_only_its_first_is_simulated():
    whole, short = search(made(8, 16)), search(made(8, 16), by="axonn")
    assert [e.model_rank for e in short.entries if e.candidate.feasible] == list(range(1, short.feasible + 1))
    assert short.simulated == 1
    first = next(e for e in whole.entries if e.model_rank == 1)
    assert first.figures == short.entries[0].figures
    assert short.best.job.concrete_grid == first.candidate.grid


def test_axes_can_be_restricted():
    found = search(made(8, 16), only={"y": frozenset({1}), "x": frozenset({1, 2})})
    assert {(e.candidate.grid.y, e.candidate.grid.x) for e in found.entries} == {(1, 1), (1, 2)}
    with pytest.raises(DescriptionError, match="no grid of so many ranks"):
        search(made(8, 16), only={"y": frozenset({3})})


def test_json_keeps_its_promise():
    found = search(made(12, 24, *leaves(0.16)))
    answer = search_json(found)
    assert answer["candidates"] == len(answer["ranking"]) == len(grids(12))
    assert answer["feasible"] == sum(row["feasible"] for row in answer["ranking"])
    best = as_json(found.best, report(found.best), 0.0)
    assert {k: v for k, v in answer["best"].items() if k != "wall_seconds"} == {
        k: v for k, v in best.items() if k != "wall_seconds"
    }
    first = answer["ranking"][0]
    assert first["step_seconds"] == answer["best"]["step_seconds"]
    assert first["grid"] == answer["best"]["grid"]
    assert first["memory"]["per_rank_bytes"] == answer["best"]["memory"]["per_rank_bytes"]
    for row in answer["ranking"]:
        assert (row["step_seconds"] is None) == (not row["feasible"])
        assert (row["reason"] is None) == row["feasible"]
        if row["hindrance"] == "memory":
            assert row["memory"]["over_bytes"] > 0


@pytest.mark.full
def test_where_the_model_s_ten_best_lie():
    answer = search_json(search(made(16, 32)))
    rows = sorted((r for r in answer["ranking"] if r["feasible"]), key=lambda r: r["communication_model_rank"])
    expected = [row["rank"] for row in rows[:10]]
    assert answer["model_top"]["simulated_ranks"] == expected
    assert answer["model_top"]["among_fastest"] == sum(rank <= 10 for rank in expected)


@pytest.mark.full
def test_the_fewest_ranks_that_keep_a_deadline():
    """Steps are whole; days, device hours and energy are those of the fastest grid of each count."""
    job, tokens = made(4, 1024), 1e6
    fleet = search_fleet(job, [8, 4, 11, 2], tokens=tokens)
    steps = -(-1_000_000 // (1024 * 256))
    seconds = {}
    for row in fleet_json(fleet)["by_ranks"]:
        if row["ranks"] == 11:
            assert "no grid divides" in row["reason"]
            continue
        seconds[row["ranks"]] = steps * row["best"]["step_seconds"]
        assert row["seconds"] == pytest.approx(seconds[row["ranks"]])
        assert row["device_hours"] == pytest.approx(seconds[row["ranks"]] * row["ranks"] / 3600)
    assert seconds[2] > seconds[4] > seconds[8]
    between = search_fleet(job, [2, 4, 8], tokens=tokens, within_seconds=(seconds[2] + seconds[4]) / 2)
    assert fleet_json(between)["fewest_ranks"] == 4
    assert between.chosen.ranks == 4
    never = search_fleet(job, [2, 4, 8], tokens=tokens, within_seconds=seconds[8] / 2)
    assert fleet_json(never)["fewest_ranks"] is None
    assert never.chosen.ranks == 8
    assert fleet_table(never).num_rows == len(fleet_json(never)["ranking"])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_the_front_is_what_no_other_point_beats(points):
    front = {points[i] for i in pareto([(float(a), float(b)) for a, b in points])}
    beaten = {p for p in points for q in points if q != p and q[0] <= p[0] and q[1] <= p[1]}
    assert front == set(points) - beaten


@pytest.mark.full
def test_the_page_stands_alone_and_escapes_names():
    job = made(4, 8, name="<script>alert(1)</script>", model={**MODEL, "name": "a</script><b>"})
    text = page(search_fleet(job, [2, 4], tokens=1e6))
    assert "<b>" not in text.split("<script>")[0].replace("<body>", "")
    assert 'src="http' not in text
    assert "<link" not in text


def test_by_energy_the_fewest_joules_come_first():
    found = search(made(8, 16), by="energy")
    joules = [entry.figures.energy_joules for entry in found.entries if entry.figures]
    assert joules == sorted(joules)
    energy = step_energy(found.best)
    assert energy is not None
    assert energy.joules == pytest.approx(joules[0], rel=1e-9)
    assert joules[0] <= min(entry.figures.energy_joules for entry in search(made(8, 16)).entries if entry.figures)


def test_what_nodes_draw_besides_their_devices_decides_too():
    """A megawatt a node: what is slower then draws more, whatever its devices save."""
    job = made(8, 16, energy={"node": "1 MW", "pue": 1.5})
    done = [entry.figures for entry in search(job, by="energy").entries if entry.figures]
    nodes = -(-job.ranks // job.machine.devices_per_node)
    by_hand = [1.5 * (figures.energy_joules + nodes * 1e6 * figures.step_seconds) for figures in done]
    assert [figures.billed_joules for figures in done] == pytest.approx(by_hand)
    assert by_hand == sorted(by_hand)
    assert done[0].step_seconds == min(figures.step_seconds for figures in done)


def test_what_a_search_by_energy_decides_by_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = search_fleet(made(4, 8), [4], by="energy")
    found = fleet.chosen.found
    assert found is not None
    best = found.entries[0].figures
    assert best is not None
    shown = f"{best.energy_joules / found.job.tokens_per_step:#.4g}"
    show.search(fleet, [], 3, None)
    for words in (capsys.readouterr().out, page(fleet)):
        assert "J/token" in words
        assert shown in words


def test_by_energy_the_published_model_is_held_against_time_all_the_same() -> None:
    """On a device that draws little while it waits, grids have another order by joules than by time."""
    thrifty = ("machine.device.power.context=1 W", "machine.device.power.links=1 W")
    by_joules, by_time = search(made(8, 16, *thrifty), by="energy"), search(made(8, 16, *thrifty))
    assert [e.candidate.grid for e in by_joules.entries] != [e.candidate.grid for e in by_time.entries]
    said, same = search_json(by_joules)["model_top"], search_json(by_time)["model_top"]
    assert said == same
    assert " in step time; " in model_words(by_joules)
    assert " in step time" not in model_words(by_time)
    assert said["best_slower_than_fastest"] >= 0.0
    places = {entry.candidate.grid: place for place, entry in enumerate(by_time.entries, 1)}
    assert said["simulated_ranks"] == [places[entry.candidate.grid] for entry in by_joules.top_of_model]
    assert "Fewest joules" in page(search_fleet(made(4, 8), [4], by="energy"))


def test_by_energy_a_deadline_is_kept_where_a_grid_keeps_it() -> None:
    """The fewest joules of those in time: not those of the thriftiest grid, which is too late."""
    job = made(8, 16, "machine.device.power.context=1 W", "machine.device.power.links=1 W")
    done = [e.figures for e in search(job, by="energy").entries if e.figures]
    late = next(i for i in range(1, len(done)) if done[i].step_seconds < min(f.step_seconds for f in done[:i]))
    tokens, within = 10.0 * job.tokens_per_step, 10.0 * done[late].step_seconds
    fleet = search_fleet(job, [8], tokens=tokens, within_seconds=within, by="energy")
    assert fleet.fewest is not None
    [plan] = fleet.plans
    assert plan.found is not None
    first = plan.found.entries[0].figures
    assert first is not None
    thriftiest = min(f.energy_joules for f in done if 10 * f.step_seconds <= within)
    assert (first.step_seconds, first.energy_joules) == (done[late].step_seconds, thriftiest)
    assert plan.found.best.step_seconds == first.step_seconds


def test_a_capped_device_takes_fewer_joules_and_longer():
    free, capped = (search(made(8, 16, *capping), by="energy") for capping in ((), ("power_cap=250 W",)))
    first, slower = free.entries[0].figures, capped.entries[0].figures
    assert first is not None
    assert slower is not None
    assert slower.step_seconds > first.step_seconds
    assert slower.energy_joules < first.energy_joules
