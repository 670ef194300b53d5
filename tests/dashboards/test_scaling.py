"""The page of a study: lines, bands, tornado and heat map, and files that strangers wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dashboards.catalog import Catalog
from dashboards.figures.scaling import drawn
from dashboards.page import PageContext
from dashboards.pages.scaling import PAGE, effect_rows, opened, summary_of, table_of, target_rows
from dashboards.settings import Settings
from tests.dashboards.serving import EVIL
from tests.dashboards.test_pages import text_of
from tests.studies.studies_files import TINY, write_study
from twin.description.problems import DescriptionError
from twin.strategies import named, names
from twin.studies.results import results_of, write_results
from twin.studies.run import Where, run_study

WEAK = {"study": "weak_scaling", "job": {}, "vary": {"ranks": [8, 16]}}
SWEEP = {"study": "sweep", "job": {}, "vary": {"ranks": [8, 16], "recompute": [True, False]}}
SENSITIVITY = {"study": "sensitivity", "job": {}}
SEEDS = {**WEAK, "engine": "ranks", "seeds": 9}
TARGET = {"study": "target", "job": {}, "vary": {"ranks": [8, 16]}, "target": {"tokens": 1e9}}


def point(number: int, ranks: int, step: float | None, **more: Any) -> dict[str, Any]:
    """One row of points.parquet."""
    row: dict[str, Any] = {
        "point": number,
        "ranks": ranks,
        "status": "done" if step else "impossible",
        "reason": "" if step else "no memory",
    }
    if step:
        row |= {
            "step_seconds": step,
            "machine": "frontier",
            "grid_data": ranks,
            "grid_z": 1,
            "grid_y": 1,
            "grid_x": 1,
            "micro_sequences": 1,
            "hardware_percent_of_peak": 30.0,
            "compute_seconds": step / 2,
            "exposed_z_seconds": step / 2,
            "exposed_communication_seconds": step / 2,
        }
    return row | more


def written(folder: Path, asked: Any, rows: list[dict[str, Any]] | bytes) -> tuple[PageContext, dict[str, str]]:
    """Write a study; return the context and the address that names it."""
    place = folder / "study"
    place.mkdir(parents=True)
    (place / "study.json").write_text(json.dumps({"kind": "study", "title": EVIL, "asked": asked}))
    if isinstance(rows, bytes):
        (place / "points.parquet").write_bytes(rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), place / "points.parquet")
    context = PageContext(Settings(folder), Catalog(folder))
    return context, {"run": context.catalog.entries()[0].name}


def figures(found: tuple[PageContext, dict[str, str]]) -> dict[str, Any]:
    return {title: figure for title, _, figure in drawn(opened(*found))}


def test_measured_points_stand_beside_predicted_ones(tmp_path):
    rows = [
        point(1, 8, 2.0, efficiency=1.0, measured_step_seconds=2.5, error=-0.2, measured_source="log"),
        point(2, 16, 2.5, efficiency=0.8),
    ]
    found = written(tmp_path, WEAK, rows)
    lines = {t.name: t for t in figures(found)["Step time"].data}
    assert list(lines["predicted"].y) == [2.0, 2.5]
    assert (list(lines["measured"].x), list(lines["measured"].y)) == ([8], [2.5])
    assert list(figures(found)["Efficiency"].data[0].y) == [100.0, 80.0]
    assert summary_of(opened(*found)) == (
        "Weak scaling: 2 of 2 points are possible. Largest: 16 ranks, 2.5 s, 80 % efficient. Against one measured "
        "point the error is 20.0 %."
    )


def test_bands_go_from_p10_to_p90_and_back(tmp_path):
    spread = {"step_seconds_p10": 1.0, "step_seconds_p50": 2.0, "step_seconds_p90": 4.0}
    rows = [point(n, ranks, 9.0, efficiency=1.0, **spread) for n, ranks in ((1, 8), (2, 16))]
    band, line = figures(written(tmp_path, SEEDS, rows))["Step time"].data
    assert list(zip(band.x, band.y, strict=True)) == [(8, 4.0), (16, 4.0), (16, 1.0), (8, 1.0)]
    assert (band.fill, list(line.y)) == ("toself", [2.0, 2.0])


def test_two_varied_keys_are_a_heat_map_with_holes(tmp_path):
    rows = [
        point(1, 8, 1.0, recompute=True),
        point(2, 8, 2.0, recompute=False),
        point(3, 16, 3.0, recompute=True),
        point(4, 16, None, recompute=False),
    ]
    heat = figures(written(tmp_path, SWEEP, rows))["Step time over both"].data[0]
    assert (list(heat.x), list(heat.y)) == (["8", "16"], ["True", "False"])
    assert [list(line) for line in heat.z] == [[1.0, 3.0], [2.0, None]]


def test_a_tornado_has_the_largest_effect_first(tmp_path):
    moved = [("low", "a", 1.1), ("high", "a", 0.9), ("low", "b", 2.0), ("high", "b", 1.0)]
    base = point(1, 8, 1.0, parameter=None, side="base", value=None)
    rows = [
        base,
        *(point(n, 8, step, parameter=name, side=side, value="v") for n, (side, name, step) in enumerate(moved, 2)),
    ]
    found = opened(*written(tmp_path, SENSITIVITY, rows))
    assert [(row["parameter"], row["swing"]) for row in effect_rows(found)] == [("b", "100.0%"), ("a", "20.0%")]
    assert "What matters most: b, 100.0 % of the step of 1 s." in summary_of(found)
    (low, _high) = drawn(found)[0][2].data
    assert [round(x, 6) for x in low.x] == [10.0, 100.0]


def test_a_target_is_a_table(tmp_path):
    rows = [point(1, 8, 1.0, target_seconds=86400.0, target_gpu_hours=192.0, target_energy_joules=3.6e9)]
    found = opened(*written(tmp_path, TARGET, rows))
    assert target_rows(found) == [{"point": "ranks 8", "days": 1.0, "GPU hours": 192.0, "energy (MWh)": 1.0}]


def test_what_a_target_takes_has_its_units_in_both_tables(tmp_path):
    """150 days, 55.5 MWh of energy and 1,000 of a currency that the study names."""
    asked = {**TARGET, "target": {"tokens": 1e9, "price_per_gpu_hour": 2.0, "currency": "EUR"}}
    taken = {"target_seconds": 150 * 86400.0, "target_energy_joules": 55.5 * 3.6e9, "target_cost": 1000.0}
    taken |= {"target_energy_cost": 70.0, "energy_currency": "CHF"}  # the job's own price of energy
    found = opened(*written(tmp_path, asked, [point(1, 8, 1.0, **taken)]))
    expected = {"days": 150.0, "energy (MWh)": 55.5, "cost of energy, CHF": 70.0, "cost, EUR": 1000.0}
    assert target_rows(found) == [{"point": "ranks 8", **expected}]
    (row,), columns = table_of(found)
    cells = {column["headerName"]: row[column["field"]] for column in columns}
    assert {title: cells[title] for title in expected} == expected


def test_little_that_a_target_takes_is_not_nothing(tmp_path):
    """1.4 kWh, 4.8 hours and 9.6 of a currency were 0.0, 5.0 and 10.0; cells stay numbers, which a table sorts."""
    asked = {**TARGET, "target": {"tokens": 1e6, "price_per_gpu_hour": 2.0, "currency": "EUR"}}
    taken = {"target_seconds": 0.0125 * 86400, "target_gpu_hours": 4.8, "target_energy_joules": 0.00140149 * 3.6e9}
    large = {"target_seconds": 1234.5678 * 86400, "target_gpu_hours": 1234567.8, "target_energy_joules": 0.0}
    rows = [point(1, 8, 1.0, **taken, target_cost=9.6), point(2, 16, 1.0, **large, target_cost=12345.67)]
    little, much = target_rows(opened(*written(tmp_path, asked, rows)))
    assert little == {"point": "ranks 8", "days": 0.0125, "GPU hours": 4.8, "energy (MWh)": 0.001401, "cost, EUR": 9.6}
    assert much == {
        "point": "ranks 16",
        "days": 1234.57,
        "GPU hours": 1234568.0,
        "energy (MWh)": 0.0,
        "cost, EUR": 12346.0,
    }


@pytest.mark.parametrize("strategy", names())
def test_points_of_every_strategy_are_shown(tmp_path, strategy):
    """Each has axes of its own."""
    axes = named(strategy).axes
    rows = []
    for number, ranks in enumerate((8, 16), 1):
        plain = {key: value for key, value in point(number, ranks, 1.0).items() if not key.startswith("grid_")}
        rows.append(plain | {f"grid_{axis}": ranks if axis == axes[0] else 1 for axis in axes})
    found = written(tmp_path, {**SWEEP, "vary": {"ranks": [8, 16]}}, rows)
    assert PAGE.shown(*found)
    cells, columns = table_of(opened(*found))
    field = {column["headerName"]: column["field"] for column in columns}
    assert cells[1][field["grid"]] == " × ".join(["16", *["1"] * (len(axes) - 1)])
    assert not [name for name, key in field.items() if name != "why not" and cells[0][key] in (None, "")]


def test_names_of_strangers_stay_text(tmp_path):
    rows = [point(1, 8, 1.0, efficiency=1.0, machine=EVIL, **{EVIL: EVIL}), point(2, 16, None, reason=EVIL)]
    asked = {**WEAK, "title": EVIL, "vary": {"ranks": [8, 16], EVIL: [EVIL]}}
    found = written(tmp_path, asked, rows)
    assert "script" in text_of(PAGE.shown(*found))
    for figure in figures(found).values():
        assert "<script" not in figure.to_json()
        assert "\\u003cscript" not in figure.to_json()


@pytest.mark.parametrize(
    "rows",
    [
        b"",
        b"PAR1 no table PAR1",
        b"PAR1" + b"\0" * 200 + b"PAR1",
        [{"point": [1, 2]}],
        [{"point": 1, "step_seconds": 1.0}],
        [point(1, 8, 1.0) | {"step_seconds": "1"}],
        [point(1, 8, 1.0) | {"ranks": "8"}],
        [point(1, 8, 1.0) | {"step_seconds": float("nan")}],
        [point(1, 8, 1.0) | {"step_seconds": -1.0}],
        [point(1, 8, 1.0) | {"grid_data": None}],
        [point(1, 8, 1.0) | {"grid_data": 4}],
        [point(1, 8, 1.0) | {"reason": 7}],
    ],
)
def test_points_that_no_study_wrote_are_refused(tmp_path, rows):
    with pytest.raises(DescriptionError, match=r"points\.parquet"):
        PAGE.shown(*written(tmp_path, WEAK, rows))


def test_points_without_figures_are_listed_all_the_same(tmp_path):
    found = written(tmp_path, WEAK, [{"x": 1, "point": 1}])
    assert "0 of 1 points" in text_of(PAGE.shown(*found))


@pytest.mark.parametrize("asked", [None, [], "x", {}, {"study": "x"}, {**WEAK, "x": 3}, {**WEAK, "vary": EVIL}])
def test_a_study_that_asks_for_nothing_known_is_refused(tmp_path, asked):
    with pytest.raises(DescriptionError):
        PAGE.shown(*written(tmp_path, asked, [point(1, 8, 1.0)]))


def test_too_many_rows_are_refused(tmp_path):
    context, query = written(tmp_path, WEAK, [{"point": 1}])
    pq.write_table(pa.table({"point": list(range(20_001))}), tmp_path / "study" / "points.parquet")
    with pytest.raises(DescriptionError, match="rows"):
        PAGE.shown(context, query)


def test_an_unfinished_study_says_how_it_goes_on(tmp_path):
    context, query = written(tmp_path, WEAK, [{"point": 1}])
    (tmp_path / "study" / "points.parquet").unlink()
    with pytest.raises(DescriptionError, match="not finished"):
        PAGE.shown(context, query)
    with pytest.raises(DescriptionError, match="choose a study"):
        PAGE.shown(context, {})


def test_numbers_in_the_names_of_points_have_their_thousands_apart(context, names):
    """In the example every point above 999 ranks is named as its table has it."""
    figures = {title: figure for title, _, figure in drawn(opened(context, {"run": names["weak-scaling"]}))}
    bars = list(figures["Where the step goes"].data[0].x)
    assert "frontier, 8,192" in bars
    said = [words for trace in figures["Step time"].data for words in trace.hovertext or ()]
    assert any("ranks 8,192" in words for words in said)
    assert not [words for words in (*bars, *said) if re.search(r"\d{4}", words.partition("<br>")[0])]


def test_what_does_not_fit_is_neither_possible_nor_fastest(tmp_path):
    rows = [
        point(1, 8, 1.0, recompute=False, memory_fits=False),
        point(2, 8, 2.0, recompute=True, memory_fits=True),
        point(3, 16, 0.5, recompute=False, memory_fits=False),
        point(4, 16, 1.5, recompute=True, memory_fits=True),
    ]
    found = written(tmp_path, SWEEP, rows)
    words = summary_of(opened(*found))
    assert "2 of 4 points are possible; 2 more do not fit into memory" in words
    assert "Fastest: 1.5 s with ranks 16, recompute True" in words
    cells = figures(found)["Step time over both"].data[0]
    assert {y: list(z) for y, z in zip(cells.y, cells.z, strict=True)} == {"True": [2.0, 1.5], "False": [None, None]}
    bars = figures(found)["Where the step goes"].data[0].x
    assert [name for name in bars if "does not fit" in name] == ["False, 8, does not fit", "False, 16, does not fit"]


def test_the_median_of_two_errors_lies_between_them(tmp_path):
    """One of a point that the twin says cannot be, and that was measured, counts above all."""
    measured = {"measured_step_seconds": 1.0, "measured_source": "log"}
    rows = [point(1, 8, 1.04, error=0.04, **measured), point(2, 16, 0.8, error=-0.2, memory_fits=False, **measured)]
    assert "the median error is 12.0 %" in summary_of(opened(*written(tmp_path, WEAK, rows)))


GRIDS = {
    "ddp": {"data": 8},
    "four_d": {"data": 2, "z": 2, "y": 2},
    "fsdp": {"data": 2, "weights": 4},
    "megatron": {"pipeline": 2, "data": 4},
}


@pytest.mark.parametrize("strategy", names())
def test_a_study_of_every_strategy_is_shown_as_it_was_written(tmp_path, strategy):
    """A grid leaves out axes that it does not have to say: FSDP's has no tensor."""
    keys = {"strategy": strategy, "ranks": 8, "grid": GRIDS[strategy], "batch": {"sequences": 16, "micro_sequences": 1}}
    study = write_study(tmp_path, job=TINY | keys, vary={"model.layers": [2, 4]})
    run = run_study(study, tmp_path / "runs" / "study", Where())
    write_results(results_of(run))
    context = PageContext(Settings(tmp_path / "runs"), Catalog(tmp_path / "runs"))
    query = {"run": context.catalog.entries()[0].name}
    assert "2 of 2 points are possible" in text_of(PAGE.shown(context, query))
