"""Lanes of single ranks folded into one, or unfolded; and the timeline as an SVG file."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dashboards.events import CATEGORIES, WAIT, columns
from dashboards.figures.timeline import timeline, whole_window
from dashboards.figures.timeline_picture import COLUMNS, picture, rows_of
from dashboards.pages.timeline_open import open_all
from dashboards.timeline.lanes import Lanes, lanes
from dashboards.timeline.step import step_of
from dashboards.timeline.view import View, paired
from tests.compare.compare_traces import Row, table
from tests.dashboards.test_browser import expect, redrawn
from tests.dashboards.test_timeline_parts import pixels_of
from twin.description.problems import DescriptionError


def laid(context, names, **query: str) -> Lanes:
    return open_all(context, {"run": names["testbed/2x2x2x1-measured"], "ranks": "0-2", **query}, meet=False).laid


def busy(shown: Lanes, rank: int) -> float:
    """Seconds of a rank's ops but its waits, on whichever lanes."""
    of_rank = np.array([of == (rank,) for of in shown.ranks])[shown.lane]
    return float((shown.end - shown.start)[of_rank & (shown.category != CATEGORIES.index(WAIT))].sum())


def test_a_folded_rank_has_one_lane_with_all_its_ops(context, names):
    plain, folded = laid(context, names), laid(context, names, turned="1")
    of = [name for name in folded.names if name.startswith("rank 1")]
    assert of == ["rank 1"]
    assert [n for n in folded.names if n not in of] == [n for n in plain.names if not n.startswith("rank 1")]
    assert busy(folded, 1) == pytest.approx(busy(plain, 1))
    assert [name for name, whole in zip(folded.names, folded.whole, strict=True) if whole] == of


def test_where_ranks_have_one_lane_each_one_can_be_unfolded(context, names):
    plain, unfolded = laid(context, names), laid(context, names, lay="rank", turned="1")
    assert [n for n in unfolded.names if n.startswith("rank 1")] == [n for n in plain.names if n.startswith("rank 1")]
    assert [n for n in unfolded.names if not n.startswith("rank 1")] == ["rank 0", "rank 2"]
    with pytest.raises(DescriptionError, match="choose among 0-7"):
        laid(context, names, turned="99")


def test_only_a_folded_lane_is_drawn_in_halves():
    """Compute is busy throughout and a collective half of the time: a lane of its own is as full as it is busy."""
    run = {
        r: [Row("micro0/fwd/a", "compute", 0, 1000), Row("micro0/fwd/y", "collective", 0, 500, axis="y")]
        for r in (0, 1)
    }
    pair = paired(("predicted",), (step_of(columns(table(run)), None),))
    shown = lanes(pair, View(turned=(1,)))
    assert [name.split(" ·")[0] for name in shown.names][-1] == "rank 1"
    pixels = pixels_of(picture(shown, (0.0, 1e-6), by_error=False).image.source)
    pixels = pixels.reshape(len(shown.names), -1, COLUMNS, 4)
    _, gap = rows_of(len(shown.names))
    full = pixels[:, gap:, :, 3].mean(axis=(1, 2)) / 255
    assert full == pytest.approx([1.0, 0.5, 0.75], abs=0.06)


def test_bars_of_a_folded_lane_hide_no_compute(context, names):
    """A collective beside compute was drawn over it, as if none were hidden."""
    query = {"run": names["testbed/2x2x2x1-measured"], "ranks": "0-1", "turned": "1"}
    found = open_all(context, query, meet=False)
    figure, _ = timeline(found.pair, found.events, found.laid, found.view, None)
    lane = found.laid.names.index("rank 1")
    ends = {}
    for trace in figure.data:
        y, width = np.asarray(trace.y, dtype=float), np.asarray(trace.width, dtype=float)
        at = np.abs(y - lane) < 0.5
        ends[trace.name] = {(round(float(a), 3), round(float(b), 3)) for a, b in zip(y[at], width[at], strict=True)}
        elsewhere = {round(float(w), 3) for w in width[~at]}
        assert elsewhere <= {0.84}
    assert ends["compute"] == {(lane - 0.21, 0.42)}  # the axis points down: the upper half
    assert ends["collective, z"] == {(lane + 0.21, 0.42)}


def test_a_click_on_a_name_folds_its_rank_and_another_unfolds_it(visitor, names):
    page = visitor.go("/timeline", {"run": names["testbed/2x2x2x1-measured"], "ranks": "0-2"})
    page.locator("#timeline .barlayer .point").first.wait_for(state="attached")
    expect(page.locator("#timeline .dash-graph--pending")).to_have_count(0)
    ticks = page.locator("#timeline .ytick text")
    before = ticks.all_text_contents()
    ticks.filter(has_text=re.compile("^rank 1 compute")).click()
    expect(ticks.filter(has_text=re.compile("^rank 1"))).to_have_text(["rank 1"])
    page.wait_for_url(re.compile("turned=1"))
    ticks.filter(has_text=re.compile("^rank 1$")).click()
    expect(ticks).to_have_text(before)


def test_clicks_that_follow_each_other_are_all_heard(visitor, names):
    """A field that reported with delay what a click had written took the next click back."""
    page = visitor.go("/timeline", {"run": names["testbed/2x2x2x1-measured"], "ranks": "0-2"})
    ticks = page.locator("#timeline .ytick text")
    for folded in (True, False) * 3:
        ticks.filter(has_text=re.compile("^rank 1 compute" if folded else "^rank 1$")).click()
        expect(ticks.filter(has_text=re.compile("^rank 1$"))).to_have_count(int(folded))


def test_a_drag_on_the_whole_step_zooms_there(visitor, context, names):
    page = visitor.go("/timeline", {"run": names["testbed/2x2x2x1-measured"], "ranks": "0-2"})
    small = page.locator("#timeline-map .nsewdrag").first
    box = small.bounding_box()
    left, right, middle = (box["x"] + share * box["width"] for share in (0.3, 0.5, 0.4))
    page.mouse.move(left, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(middle, box["y"] + box["height"] / 2)
    page.mouse.move(right, box["y"] + box["height"] / 2)
    page.mouse.up()
    page.wait_for_url(re.compile("window="))
    low, high = map(float, visitor.query()["window"].split(".."))
    first, last = whole_window(laid(context, names))
    shares = [(end - first) / (last - first) for end in (low, high)]
    assert shares == pytest.approx([0.3, 0.5], abs=0.02)


def test_the_timeline_is_saved_as_svg(visitor, names, tmp_path):
    page = visitor.go("/timeline", {"run": names["testbed/2x2x2x1-measured"], "ranks": "0-2"})
    page.locator("#timeline .barlayer .point").first.wait_for(state="attached")
    with page.expect_download() as found:
        page.get_by_role("button", name="Save as SVG").click()
    assert found.value.suggested_filename == "timeline.svg"
    found.value.save_as(tmp_path / "timeline.svg")
    drawn = (tmp_path / "timeline.svg").read_text()
    assert drawn.startswith("<svg")
    assert "rank 2 compute" in drawn


def test_the_table_below_the_picture_comes_after_it_and_leads_to_its_ops(visitor, queries):
    page = visitor.go("/timeline", queries["/timeline"])
    row = page.locator("#timeline-worst .ag-row").first
    row.wait_for()
    assert page.locator("#timeline .xtick").count() > 0
    expect(page.locator("#timeline .dash-graph--pending")).to_have_count(0)
    redrawn(page, row.locator(".ag-cell").first.click)
    page.wait_for_url(re.compile("op="))
    expect(page.locator("#timeline-members, #timeline-elsewhere").first).to_be_visible()
