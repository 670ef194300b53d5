"""Numbers and colours as a reader meets them: a sign for minus, one colour for each run of a pair."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dashboards.app import content
from dashboards.catalog import Catalog, Entry
from dashboards.chooser import suited
from dashboards.figures.rank_map import spread
from dashboards.figures.timeline import timeline
from dashboards.figures.training import Curve, panel
from dashboards.figures.waterfall import waterfall
from dashboards.jobs import contents
from dashboards.pages import PAGES
from dashboards.pages.runs import columns_of
from dashboards.pages.scaling import opened, table_of
from dashboards.pages.timeline_open import open_all
from dashboards.pages.training import READER
from dashboards.parts import minus, percent, seconds, table
from dashboards.run_rows import rows_of
from tests.dashboards import serving
from tests.dashboards.test_browser import Visitor
from tests.dashboards.test_pages import text_of
from twin.compare.terms import Term

BY_PATH = {page.path: page for page in PAGES}
HYPHENED = re.compile(r"(?:^|[\s(])-\d")
TERMS = [Term("a", "a", 1.0, 3.0, 2.0), Term("b", "b", 2.0, 1.0, -1.0), Term("c", "c", 1.0, 1.0, 0.0)]


def strings(node: Any) -> Iterator[str]:
    """Words that a browser is sent, without the names of properties."""
    if isinstance(node, str):
        yield node
    seen = [one for key, one in node.items() if key != "uirevision"] if isinstance(node, dict) else node
    for one in seen if isinstance(seen, list) else ():
        yield from strings(one)


@pytest.mark.parametrize("path", ["/verdict", "/compare", "/timeline", "/whatif", "/trust"])
def test_no_number_of_a_page_has_a_hyphen_for_its_sign(context, queries, path):
    words = " ".join(strings(json.loads(text_of(content(BY_PATH[path], context, queries[path])))))
    assert ("−" in words) == (path in ("/verdict", "/compare", "/timeline"))
    assert [words[max(m.start() - 40, 0) : m.end() + 20] for m in HYPHENED.finditer(words)] == []


def test_ranges_and_dates_keep_their_hyphens():
    words = "ranks 0-3, 2026-11-25, gpt-20b, mean of (0-7)"
    assert minus(words) == words
    assert seconds(-0.0) == "0 s"
    assert (seconds(-2e-3), percent(-3.21), percent(4.0, 0)) == ("−2 ms", "−3.2 %", "+4 %")


def test_what_the_pointer_says_of_an_op_has_the_sign_too(context, names):
    query = {"run": names["by-hand/predicted"], "other": names["by-hand/measured"]}
    found = open_all(context, query, meet=False)
    figure, _ = timeline(found.pair, found.events, found.laid, found.view, None)
    words = " ".join(word.replace("<br>", " ") for trace in figure.data for word in trace.hovertext or ())
    assert re.search(r"difference: −1 ns \(−\d+ %\)", words)
    assert "8 B" in words
    assert not re.search(r"\de-\d", words)  # what two floats differ by in their last digit is none, and 8 B no 8e-06 MB
    assert not HYPHENED.search(words)


def test_cells_of_tables_write_minus_as_all_else_does(browser, server, queries):
    visitor = Visitor(browser, server)
    page = visitor.go("/verdict", queries["/verdict"])
    page.locator(".ag-cell:visible").first.wait_for()
    script = "dashAgGridFunctions.{}({})"
    written = [page.evaluate(script.format(*one)) for one in (("seconds", -0.0035), ("number", -36), ("number", -1e-5))]
    assert written == ["−3.5 ms", "−36", "−1·10⁻⁵"]
    figures = (
        ("1.6e9", "rate (B/s)"),
        ("0.0090084", "exposed (s)"),
        ("72384000", "memory of a rank (B)"),
        ("6.05", "energy (J)"),
        ("4", "ranks"),
    )
    said = [page.evaluate(f"dashAgGridFunctions.quantity({value}, '{name}')") for value, name in figures]
    assert said == ["1.6 GB/s", "9.01 ms", "72.4 MB", "6.05 J", "4"]
    assert page.evaluate("dashAgGridFunctions.unitless('memory of a rank (B)')") == "memory of a rank"
    visitor.context.close()
    assert visitor.wrong == []


def test_each_run_of_a_pair_has_one_colour_that_no_difference_has(context, queries):
    """Compare's second run was grey in one figure and orange in the next, and orange was what takes longer too."""
    figure = waterfall(1.0, 2.0, TERMS, ("first", "second"))
    ends = [trace.marker.color for trace in figure.data[:2]]
    assert not set(ends) & {trace.marker.color for trace in figure.data[2:]}
    page = content(BY_PATH["/compare"], context, queries["/compare"])
    drawn = {
        part.id: part.figure
        for part in page._traverse()
        if str(getattr(part, "id", "")).startswith("compare-") and hasattr(part, "figure")
    }
    assert len(drawn) == 5
    assert [trace.marker.color for trace in drawn["compare-parts"].data[:2]] == ends
    for name in ("phases", "kinds", "streams"):
        assert [trace.marker.color for trace in drawn[f"compare-{name}"].data] == ends


def test_a_watched_training_is_described_as_any_other(tmp_path):
    """Its step, rate and progress were left empty, as `watch.json` is what tells it."""
    for name in ("plain", "watched"):
        serving.write_training(tmp_path / name)
    job = json.loads((tmp_path / "watched" / "run.json").read_text())["job"]
    (tmp_path / "watched" / "watch.json").write_text(json.dumps({"schema_version": 1, "job": job}))
    catalog = Catalog(tmp_path)
    plain, watched = sorted(rows_of(catalog, catalog.entries(), None), key=lambda row: row["label"])
    assert (plain["kind"], watched["kind"]) == ("training", "watch")
    same = ("model", "machine", "ranks", "grid", "step", "tokens", "holds")
    assert [watched[key] for key in same] == [plain[key] for key in same]
    assert watched["step"] == pytest.approx(0.5)
    entries = {entry.name: entry for entry in catalog.entries()}
    assert suited(BY_PATH["/whatif"], entries, {"run": watched["name"]}) == ""


def test_predicted_rates_of_two_trainings_are_named_in_places_of_their_own(context, names):
    record = READER.record(context.catalog, context.catalog.entry(names["training"]))
    figure = panel(
        [Curve(label, record, rate, (), ()) for label, rate in (("a", 7754.0), ("b", 7873.0))],
        "tokens_per_second",
        "steps",
    )
    notes = [(note.text, note.xanchor, note.yanchor) for note in figure.layout.annotations]
    assert [text for text, *_ in notes] == ["predicted, 7,754", "predicted, 7,873"]
    assert notes[0][1:] != notes[1][1:]


def test_columns_of_a_study_are_named_with_their_units(context, names):
    found = opened(context, {"run": names["weak-scaling"]})
    rows, columns = table_of(found)
    titles = [column["headerName"] for column in columns]
    share = next(column["field"] for column in columns if column["headerName"] == "efficiency (%)")
    assert [row[share] for row in rows] == [
        round(100 * point["efficiency"], 1) if "efficiency" in point else None for point in found.rows
    ]
    assert "step (s)" in titles
    assert len(set(titles)) == len(titles)
    assert not any("_" in title for title in titles if not title.startswith("machine."))


def test_a_search_over_strategies_holds_the_candidates_of_all(tmp_path):
    """The list of runs said how many the winner's strategy had."""
    one = [{"strategy": name, "candidates": n, "feasible": n - 1} for name, n in (("four_d", 216), ("megatron", 1258))]
    head = {"candidates": 216, "feasible": 215, "strategy": "four_d", "best": {"grid": {"data": 4, "z": 1}}}
    entry = Entry("name", "label", "search", tmp_path, 0.0, {**head, "strategies": one})
    assert contents(entry) == "1,474 candidates, 1,472 can run; best four_d 4 × 1"
    alone = Entry("name", "label", "search", tmp_path, 0.0, head)
    assert contents(alone) == "216 candidates, 215 can run; best 4 × 1"
    wrong = Entry("name", "label", "search", tmp_path, 0.0, {**head, "strategies": [{"candidates": "x"}]})
    assert contents(wrong).startswith("? candidates")


@pytest.mark.parametrize(("counts", "tick"), [((1, 1, 2), 1), ((400, 300), None), ((0,), 1)])
def test_no_tick_stands_at_half_a_rank(counts, tick):
    values = np.repeat(np.arange(len(counts), dtype=np.float64), counts)
    assert spread(values, "compute").layout.yaxis.dtick == tick


def test_a_part_that_stays_is_not_said_to_take_less():
    named = {key: trace for trace in waterfall(1.0, 2.0, TERMS).data for key in trace.customdata}
    assert named["b"].name == "takes less"
    assert named["c"].showlegend is False


def test_filters_of_times_and_bytes_say_which_unit_they_take():
    """Cells have units with prefixes; the heading has none."""
    rows = [{"name": "a", "step (s)": 0.1, "held (B)": 1e9, "link (B/s)": 1e9, "ranks": 4}]
    grid = next(node for node in table("t", rows)._traverse() if getattr(node, "id", None) == "t")
    said = {column["field"]: column.get("filterParams", {}).get("filterPlaceholder") for column in grid.columnDefs}
    units = {"step (s)": "in seconds", "held (B)": "in bytes", "link (B/s)": "in bytes per second"}
    assert said == {"name": None, "ranks": None, **units}
    step = next(column for column in columns_of("") if column["field"] == "step")
    assert step["filterParams"] == {"filterPlaceholder": "in seconds"}
