"""The page of a search: what is best, what is chosen, and files that strangers wrote."""

from __future__ import annotations

import json
import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dashboards.candidate_rows import MAX_ROWS, able, facts, unable
from dashboards.candidate_words import summary_of
from dashboards.candidates import candidates_of, job_text
from dashboards.catalog import Catalog
from dashboards.figures.pareto import MAX_POINTS, TOP, coordinates, orders, parallel, pareto
from dashboards.page import PageContext
from dashboards.pages.configurations import PAGE, filtered, pair_of
from dashboards.settings import Settings
from tests.dashboards.serving import EVIL
from tests.dashboards.test_pages import text_of
from tests.profiles import examples
from twin.description.problems import DescriptionError
from twin.strategies import load_job

JOB = {
    "name": "j",
    "model": "gpt2",
    "machine": "laptop",
    "ranks": 8,
    "grid": {"data": 8},
    "batch": {"sequences": 64},
    "train": {"steps": 3},
}


def candidate(
    sizes: tuple[int, int, int, int],
    *,
    step: float | None = None,
    memory: float = 1e9,
    rank: int | None = None,
    model_rank: int | None = None,
    reason: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One entry of a ranking as `fourfold search` writes it."""
    runs = step is not None
    return {
        "ranks": 8,
        "rank": rank,
        "grid": dict(zip(("data", "z", "y", "x"), sizes, strict=True)),
        "options": {
            "micro_sequences": 2 if runs else None,
            "recompute": True,
            "cache_gathered_layers": 0,
            "data_reduction": "one_bucket",
            "overlap": {"all_reduce": True, "reduce_scatter": False, "all_gather": True},
        },
        "feasible": runs,
        "reason": reason,
        "hindrance": None if runs else "memory",
        "micro_steps": 1,
        "step_seconds": step,
        "communication_model_rank": model_rank,
        "communication_model_seconds": 1.0,
        "memory": {
            "per_rank_bytes": memory,
            "capacity_bytes": 16e9,
            "fits": runs,
            "over_bytes": 0.0,
            "largest_category": "weights",
            "by_category": {"weights": memory},
        },
        "compute_seconds": step,
        "exposed_communication_seconds": 0.25 if runs else None,
        "exposed_by_axis": {"z": 0.25} if runs else None,
        "idle_seconds": 0.0 if runs else None,
        "tokens_per_second": 1.0 if runs else None,
        "hardware_percent_of_peak": 1.0 if runs else None,
        **more,
    }


RANKING = [
    candidate((8, 1, 1, 1), step=1.0, memory=9e9, rank=1, model_rank=2),
    candidate((4, 2, 1, 1), step=2.0, memory=5e9, rank=2, model_rank=3),
    candidate((2, 4, 1, 1), step=3.0, memory=6e9, rank=3, model_rank=1),
    candidate((1, 8, 1, 1), step=4.0, memory=1e9, rank=4, model_rank=11),
    candidate((1, 1, 8, 1), reason=f"needs more memory {EVIL}", memory=20e9),
]


def written(folder: Path, ranking: Any, job: Any = JOB, **head: Any) -> tuple[PageContext, dict[str, str]]:
    """Write a search; return the context and the address that names it."""
    place = folder / "found"
    place.mkdir(parents=True)
    (place / "ranking.json").write_text(json.dumps({"job": "j", "ranking": ranking} | head))
    (place / "best.yaml").write_text(yaml.safe_dump(job))
    context = PageContext(Settings(folder), Catalog(folder))
    return context, {"run": context.catalog.entries()[0].name}


@pytest.fixture
def search(tmp_path: Path) -> tuple[PageContext, dict[str, str]]:
    return written(tmp_path, RANKING)


def read(search: tuple[PageContext, dict[str, str]]) -> Any:
    context, query = search
    return candidates_of(context.catalog, context.catalog.entry(query["run"]))


def test_the_front_holds_what_nothing_beats(search):
    figure = pareto(read(search))
    line = next(t for t in figure.data if t.name == "front")
    assert list(zip(line.x, line.y, strict=True)) == [(1.0, 9e9), (2.0, 5e9), (4.0, 1e9)]
    assert list(next(t for t in figure.data if t.name == f"the model's first {TOP}").customdata) == [0, 1, 2]


def test_a_search_by_energy_is_placed_in_time_too(tmp_path):
    """The file has the fewest joules first; what is said to be fastest is, and places in time are those of time."""
    steps = [(3.0, 8), (1.0, 8), (9.0, 4), (2.0, 8), (4.0, 4)]
    ranking = [
        candidate((ranks, 1, 1, 1), step=step, rank=place, model_rank=place, ranks=ranks)
        for place, (step, ranks) in enumerate(steps, 1)
    ]
    found = read(written(tmp_path, ranking, by="energy"))
    assert [c.rank for c in found] == [3, 1, 2, 2, 1]
    assert [c.place for c in found] == [1, 2, 3, 4, 5]
    assert "Fastest: 8 × 1 × 1 × 1 (data × z × y × x), 1 s," in summary_of(found, found)


@examples(0.4)  # it writes files
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12))
def test_the_front_is_that_of_brute_force(places):
    ranking = [candidate((8, 1, 1, 1), step=float(s), memory=m * 1e9, rank=n + 1) for n, (s, m) in enumerate(places)]
    with tempfile.TemporaryDirectory() as folder:
        known = read(written(Path(folder), ranking))
    line = next(t for t in pareto(known).data if t.name == "front")
    beaten = {b for a, b in combinations(sorted(set(places)), 2) if a[0] <= b[0] and a[1] <= b[1]}
    assert list(zip(line.x, line.y, strict=True)) == [(s, 1e9 * m) for s, m in sorted(set(places) - beaten)]


@pytest.mark.full
def test_of_very_many_the_fastest_and_the_whole_front_are_drawn(tmp_path):
    many = [candidate((8, 1, 1, 1), step=1.0 + n, memory=5e9, rank=n + 1) for n in range(MAX_POINTS + 50)]
    least = candidate((1, 8, 1, 1), step=1e6, memory=1e9, rank=MAX_POINTS + 51)
    known = read(written(tmp_path, [*many, least]))
    points, line = pareto(known).data[:2]
    assert len(points.x) == MAX_POINTS + 1
    assert list(zip(line.x, line.y, strict=True)) == [(1.0, 5e9), (1e6, 1e9)]
    assert len(able(known)) <= MAX_ROWS


def test_parallel_coordinates_pass_through_every_axis_once(search):
    known = read(search)
    lines = parallel(known).data
    axes = list(range(len(coordinates(known))))
    passed = [t.x[n : n + len(axes)] for t in lines for n in range(0, len(t.x), len(axes) + 1)]
    assert [list(one) for one in passed] == [axes] * 4
    assert all(y is None or 0.0 <= y <= 1.0 for t in lines for y in t.y)


def test_ends_of_axes_have_units_that_suit_them(tmp_path):
    """Of a small job memory ended at 0.01871, and the step at 0.2431."""
    small = [
        candidate((8, 1, 1, 1), step=0.2431, memory=18.71e6, rank=1),
        candidate((1, 8, 1, 1), step=0.5, memory=2e8),
    ]
    known = read(written(tmp_path, small))
    assert {"18.7 MB", "200 MB", "243 ms", "500 ms"} <= {note.text for note in parallel(known).layout.annotations}
    assert (pareto(known).layout.yaxis.tickformat, pareto(known).layout.yaxis.ticksuffix) == ("~s", "B")


def test_ticks_of_very_different_steps_have_a_unit_each(tmp_path):
    """Plotly writes 1ks beside 500."""
    far = [candidate((8, 1, 1, 1), step=0.5, rank=1), candidate((1, 8, 1, 1), step=1800.0, rank=2)]
    axis = pareto(read(written(tmp_path, far))).layout.xaxis
    said = dict(zip(axis.tickvals, axis.ticktext, strict=True))
    assert axis.type == "log"
    assert (said[0.5], said[20.0], said[2000.0]) == ("500 ms", "20 s", "2,000 s")


def test_filters_keep_what_an_address_asks_for(search):
    known = read(search)
    assert [c.number for c in filtered(known, {"z": "2,8"})] == [1, 3]
    assert [c.number for c in filtered(known, {"z": "1", "fits": "memory"})] == [4]
    assert [c.number for c in filtered(known, {"recompute": "off"})] == []
    assert len(able(known)) == 4
    assert [r["data × z × y × x"] for r in unable(known)] == ["1 × 1 × 8 × 1"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("3,1", [3, 1]), ("", []), ("9,1", [1]), ("1,1,2,0", [1, 2]), ("-1,x,²", []), ("99999999999999999999", [])],
)
def test_two_candidates_are_chosen_by_number(search, text, numbers):
    assert [c.number for c in pair_of(text, read(search))] == numbers


def test_two_chosen_ones_stand_side_by_side(search):
    context, query = search
    shown = text_of(PAGE.shown(context, {**query, "pair": "0,3"}))
    assert "Side by side" in shown
    assert facts(read(search)[3])["memory of a rank"] == "1.0 GB"


def test_the_job_file_of_a_candidate_is_the_searchs_own_with_its_choice(search):
    context, query = search
    entry = context.catalog.entry(query["run"])
    raw = yaml.safe_load(job_text(context.catalog, entry, read(search)[1]))
    assert raw["grid"] == {"data": 4, "z": 2, "y": 1, "x": 1}
    assert raw["overlap"] == {"reduce_scatter": False}
    assert raw["train"] == {"steps": 3}
    job = load_job(raw)
    assert (job.ranks, job.concrete_micro_sequences) == (8, 2)
    with pytest.raises(DescriptionError, match="cannot run"):
        job_text(context.catalog, entry, read(search)[4])


def test_reasons_of_strangers_stay_text(search):
    context, query = search
    shown = PAGE.shown(context, query)
    assert EVIL in json.loads(text_of(EVIL))
    for figure in (pareto(read(search)), parallel(read(search)), orders(read(search))):
        assert "script" not in figure.to_json()
    assert "needs more memory" in text_of(shown)


@pytest.mark.parametrize(
    "ranking",
    [
        None,
        {},
        [],
        [None],
        [[]],
        [{}],
        ["x"],
        [{"grid": 3}],
        [{**RANKING[0], "grid": {"data": "8"}}],
        [{**RANKING[0], "grid": {"data": 0, "z": 1, "y": 1, "x": 1}}],
        [{**RANKING[0], "step_seconds": "1"}],
        [{**RANKING[0], "step_seconds": -1.0}],
        [{**RANKING[0], "step_seconds": True}],
        [{**RANKING[0], "feasible": "yes"}],
        [{**RANKING[0], "options": []}],
        [{**RANKING[0], "options": {}}],
        [{**RANKING[0], "reason": 7}],
        [{**RANKING[0], "memory": [1]}],
        [{**RANKING[0], "rank": 1.5}],
        [{**RANKING[0], "rank": 10**30}],
        [{**RANKING[0], "exposed_by_axis": {str(n): 1.0 for n in range(99)}}],
        [{**RANKING[0], "step_seconds": float("inf")}],
        [{**RANKING[0], "step_seconds": float("nan")}],
    ],
)
def test_a_ranking_that_no_search_wrote_is_refused(tmp_path, ranking):
    context, query = written(tmp_path, ranking)
    with pytest.raises(DescriptionError, match="ranking"):
        PAGE.shown(context, query)


@pytest.mark.parametrize("job", [{}, {"batch": 3}, {"batch": {}, "overlap": [1]}, {"batch": {}, "data_reduction": "x"}])
def test_a_job_file_that_no_search_wrote_is_refused(tmp_path, job):
    context, query = written(tmp_path, RANKING, job)
    entry = context.catalog.entry(query["run"])
    with pytest.raises(DescriptionError):
        job_text(context.catalog, entry, read((context, query))[0])


def test_a_job_file_that_leads_elsewhere_is_not_read(tmp_path):
    context, query = written(tmp_path / "root", RANKING)
    secret = tmp_path / "secret.yaml"
    secret.write_text(yaml.safe_dump(JOB))
    best = tmp_path / "root" / "found" / "best.yaml"
    best.unlink()
    best.symlink_to(secret)
    with pytest.raises(DescriptionError, match="outside"):
        job_text(context.catalog, context.catalog.entry(query["run"]), read((context, query))[0])


def test_a_machine_that_is_named_as_a_path_is_not_opened(tmp_path):
    context, query = written(tmp_path, RANKING, {**JOB, "machine": "/nowhere/at/all.yaml"})
    text = job_text(context.catalog, context.catalog.entry(query["run"]), read((context, query))[0])
    assert yaml.safe_load(text)["machine"] == "/nowhere/at/all.yaml"


def test_a_page_without_a_search_says_what_to_choose(search):
    with pytest.raises(DescriptionError, match="choose a search"):
        PAGE.shown(search[0], {})
