"""The page of a search over several strategies: the best of each side by side, all candidates together."""

from __future__ import annotations

import json
import pkgutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dashboards.anatomy import SLOWEST
from dashboards.candidate_rows import able, facts
from dashboards.candidate_words import model_summary
from dashboards.candidates import candidates_of, job_text
from dashboards.catalog import Catalog
from dashboards.figures.pareto import coordinates, orders, parallel, pareto
from dashboards.figures.strategies import beside, best_of, slowest_wait
from dashboards.page import PageContext
from dashboards.pages.configurations import PAGE, file_name, filtered
from tests.dashboards.serving import EVIL
from tests.dashboards.test_configurations import JOB, RANKING, candidate, read, written
from tests.dashboards.test_pages import text_of
from twin.description.problems import DescriptionError
from twin.strategies import load_job


def other(strategy: str, grid: dict[str, int], options: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A candidate of another strategy, as `fourfold search --strategy all` writes it."""
    made = candidate((1, 1, 1, 1), **more) | {"strategy": strategy, "grid": grid}
    return made | {"options": {"micro_sequences": made["options"]["micro_sequences"], **options}}


def fsdp_grid(data: int, weights: int) -> dict[str, int]:
    return {"data": data, "optimizer": 1, "gradients": 1, "weights": weights}


def megatron_grid(data: int, tensor: int) -> dict[str, int]:
    return {"pipeline": 1, "data": data, "context": 1, "tensor": tensor}


FSDP = {"recompute": False, "reshard_after_forward": False}
MEGATRON = {"recompute": "none", "distributed_optimizer": True, "schedule": "1f1b", "chunks": 1} | {
    "sequence_parallel": False,
    "context_exchange": "ring",
    "overlap_gradients": True,
    "overlap_parameters": True,
    "stage_layers": None,
    "flavour": "megatron",
}
ACROSS = [
    other("fsdp", fsdp_grid(2, 4), FSDP, step=1.0, memory=8e9, rank=1, energy_joules=3.6e6),
    other("fsdp", fsdp_grid(1, 8), FSDP, step=3.0, memory=4e9, rank=2, energy_joules=4e6),
    candidate((1, 8, 1, 1), step=2.0, memory=9e9, rank=1, model_rank=1, energy_joules=7.2e6) | {"strategy": "four_d"},
    candidate((1, 4, 2, 1), memory=9e9, model_rank=2) | {"strategy": "four_d", "feasible": True, "hindrance": None},
    other("megatron", megatron_grid(4, 2), MEGATRON, step=2.5, memory=2e9, rank=1),
    other("megatron", megatron_grid(1, 8), MEGATRON, reason="needs more memory", memory=20e9),
]


@pytest.fixture
def across(tmp_path: Path) -> tuple[PageContext, dict[str, str]]:
    """A search over three strategies, which FSDP won; a fourth cannot run."""
    job = {key: value for key, value in JOB.items() if key != "grid"}
    fsdp = {**job, "strategy": "fsdp", "grid": {"data": 2, "weights": 4}, "reshard_after_forward": False}
    context, query = written(tmp_path, ACROSS, fsdp)
    place = tmp_path / "found" / "ranking.json"
    more = {"strategy": "fsdp", "cannot_run": {"ddp": f"needs all weights on a rank {EVIL}"}}
    place.write_text(json.dumps(json.loads(place.read_text()) | more))
    return context, query


def test_strategies_stand_beside_each_other(across):
    """The best of each, its step in three parts, memory, energy; the others by how much slower."""
    context, query = across
    found = candidates_of(context.catalog, context.catalog.entry(query["run"]))
    best = best_of(found)
    assert [c.number for c in best] == [0, 2, 4]
    bars = {(bar.name, bar.xaxis): list(bar.x) for bar in beside(best).data}
    assert bars["exposed communication", "x"] == [0.25] * 3
    steps = np.sum([bars[name, "x"] for name in ("compute", "exposed communication", SLOWEST, "idle")], axis=0)
    assert steps.tolist() == [1.25, 2.25, 2.75]  # the parts of the rows above are more than their steps
    assert bars[None, "x2"] == [8e9, 9e9, 2e9]
    assert bars[None, "x3"] == [3.6e6, 7.2e6, 0.0]
    assert {bar.orientation for bar in beside(best).data} == {"h"}
    words = text_of(PAGE.shown(context, query))
    assert "; four_d 100 % slower; megatron 150 % slower." in words
    assert "ddp cannot run: needs all weights on a rank <script>" in words  # as text
    table = next(n for n in PAGE.shown(context, query)._traverse() if getattr(n, "id", None) == "strategies-table")
    assert [(r["strategy"], r["candidates"], r["can run"], r["simulated"]) for r in table.rowData] == [
        ("fsdp", 2, 2, 2),
        ("four_d", 2, 2, 1),
        ("megatron", 2, 1, 1),
    ]


def test_candidates_of_strategies_have_places_colours_and_columns_together(across):
    context, query = across
    found = candidates_of(context.catalog, context.catalog.entry(query["run"]))
    assert [c.place for c in found] == [1, 4, 2, None, 3, None]
    points = {t.name: (t.marker.color, t.marker.symbol, list(t.customdata)) for t in pareto(found).data if t.customdata}
    assert {name: of[2] for name, of in points.items() if name in ("fsdp", "four_d", "megatron")} == {
        "fsdp": [0, 1],
        "four_d": [2],
        "megatron": [4],
    }
    assert len({points[name][0] for name in ("fsdp", "four_d", "megatron")}) == 3
    assert len({points[name][1] for name in ("fsdp", "four_d", "megatron")}) == 3
    alone = pareto(filtered(found, {"strategy": "megatron"})).data[0]
    assert (alone.marker.color, alone.marker.symbol) == points["megatron"][:2]  # a filter changes no colour
    assert [c.number for c in filtered(found, {"strategy": "fsdp,megatron"})] == [0, 1, 4, 5]
    shown = PAGE.shown(context, query)
    table = next(n for n in shown._traverse() if getattr(n, "id", None) == "candidates")
    columns = {column["field"] for column in table.columnDefs}
    assert all(set(row) <= columns for row in table.rowData)
    assert [row["grid"] for row in table.rowData][:1] == ["fsdp, data 2 × weights 4"]
    assert {name for name, *_ in coordinates(found)} >= {"data", "weights", "z", "tensor"}
    parallel(found)


def test_the_models_order_is_said_to_be_of_its_strategy(across):
    """Of all candidates the first of four_d is second; the figure has it at its place within four_d, where it is first.

    Its hover said `place 2 (the model's 1)` at a point whose height is 1.
    """
    context, query = across
    found = candidates_of(context.catalog, context.catalog.entry(query["run"]))
    figure = orders(found)
    assert figure.layout.xaxis.title.text == "place by the published model, among those of four_d"
    assert figure.layout.yaxis.title.text == "place in simulated time, among those of four_d"
    (point,) = [trace for trace in figure.data if trace.customdata == (2,)]
    assert (point.x, point.y) == ((1,), (1,))
    assert point.hovertext[0].startswith("four_d, z 8, place 2 of all, 1 of four_d (the model's 1 of four_d)<br>")
    assert model_summary(found, found) == (
        "The published communication model's first 10 of four_d lie at places 1 in simulated time, among those of "
        "four_d; without a place, as they cannot run or cannot be the fastest: 1."
    )
    card = facts(found[2])
    assert (card["place"], card["place in its strategy"], card["model's place in its strategy"]) == ("2", "1", "1")
    assert [(row["place"], row["place in its strategy"]) for row in able(found)][:3] == [(1, 1), (4, 2), (2, 1)]
    alone = read(written(context.settings.root / "alone", RANKING))
    assert orders(alone).layout.xaxis.title.text == "place by the published model"
    assert "place in its strategy" not in facts(alone[0])


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_candidate_of_any_strategy_is_a_job(across, number):
    """Not of the best one's alone: its keys that hold for every strategy, and the candidate's own."""
    context, query = across
    entry = context.catalog.entry(query["run"])
    found = candidates_of(context.catalog, entry)[number]
    job = load_job(yaml.safe_load(job_text(context.catalog, entry, found)))
    assert (job.strategy, job.batch.sequences) == (found.strategy, 64)
    assert job.concrete_grid.by_axis() == found.grid.by_axis()
    assert (
        file_name(found).partition(".")[0]
        == ("fsdp-data2-weights4", "four_d-z8", "megatron-data4-tensor2")[number // 2]
    )


def test_a_grid_that_lacks_an_axis_of_its_strategy_is_refused(tmp_path):
    context, query = written(tmp_path, [RANKING[0] | {"strategy": "megatron", "grid": {"data": 8}}])
    with pytest.raises(DescriptionError, match=r"ranking\.0.*lacks pipeline, context, tensor of megatron"):
        candidates_of(context.catalog, context.catalog.entry(query["run"]))


@pytest.mark.parametrize("strategy", ["megatro", 3, None, ["fsdp"], {}])
def test_a_strategy_that_is_none_is_refused(tmp_path, strategy):
    context, query = written(tmp_path, [RANKING[0] | {"strategy": strategy}])
    with pytest.raises(DescriptionError, match=r"ranking\.0.*strategy"):
        candidates_of(context.catalog, context.catalog.entry(query["run"]))


def test_strategies_are_listed_as_often_for_many_candidates_as_for_few(across, monkeypatch):
    """Each candidate listed the folder of strategies for each filter: a page of 24,112 took minutes."""
    context, query = across
    listed = []
    kept = pkgutil.iter_modules
    monkeypatch.setattr(pkgutil, "iter_modules", lambda *given: listed.append(given) or kept(*given))
    PAGE.shown(context, query)
    few = len(listed)
    place = context.catalog.root / "found" / "ranking.json"
    head = json.loads(place.read_text())
    place.write_text(json.dumps(head | {"ranking": head["ranking"] * 5}))
    again = PageContext(context.settings, Catalog(context.catalog.root))
    listed.clear()
    PAGE.shown(again, query)
    assert len(listed) == few


def test_what_waits_for_the_slowest_device_is_not_called_idle(tmp_path):
    """Of a step in which ranks stood still for 50 µs, 0.6 s were drawn as idle, and no row said what they were."""
    parts = {"compute_seconds": 9.0, "exposed_communication_seconds": 0.5, "idle_seconds": 0.125}
    one = read(written(tmp_path, [candidate((8, 1, 1, 1), step=10.0, rank=1) | parts]))[0]
    assert slowest_wait(one) == 0.375
    assert (facts(one)["wait for the slowest device"], facts(one)["idle"]) == ("375 ms", "125 ms")
    bars = {bar.name: list(bar.x) for bar in beside([one]).data}
    assert (bars[SLOWEST], bars["idle"]) == ([0.375], [0.125])
