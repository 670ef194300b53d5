"""What stands on pages can be read: whole, beside its neighbours, on the colour that it has behind it."""

from __future__ import annotations

import re
from itertools import combinations, pairwise

import pytest

from tests.dashboards.serving import served
from tests.dashboards.test_browser import Visitor
from tests.dashboards.test_configurations import JOB, written
from tests.dashboards.test_strategies import ACROSS

CONTRAST = """field => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).slice(0, 3).map(Number);
  const light = (text) => rgb(text).map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const one = light(getComputedStyle(field, "::placeholder").color);
  const other = light(getComputedStyle(field).backgroundColor);
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}"""
"""WCAG's contrast of what stands in an empty field."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_stands_in_an_empty_field_can_be_read(browser, server, queries, theme: str):
    visitor = Visitor(browser, server, theme)
    page = visitor.go("/timeline", queries["/timeline"])
    fields = page.locator("#content input[placeholder]:visible")
    page.locator("#timeline-jump").wait_for()
    assert fields.count() >= 3
    assert min(field.evaluate(CONTRAST) for field in fields.all()) >= 4.5
    visitor.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_marks_of_a_lever_can_be_read_and_lie_apart(browser, server, queries, theme: str):
    visitor = Visitor(browser, server, theme)
    page = visitor.go("/whatif", queries["/whatif"])
    marks = page.locator(".mantine-Slider-markLabel:visible")
    marks.first.wait_for()
    one = CONTRAST.replace('getComputedStyle(field, "::placeholder")', "getComputedStyle(field)")
    on_page = one.replace("getComputedStyle(field).backgroundColor", "getComputedStyle(document.body).backgroundColor")
    assert marks.count() > 20
    assert min(mark.evaluate(on_page) for mark in marks.all()) >= 4.5
    boxes = [mark.bounding_box() for mark in marks.all()]
    for before, after in pairwise(boxes):
        assert before["y"] != after["y"] or before["x"] > after["x"] or before["x"] + before["width"] < after["x"]
    visitor.context.close()


def test_a_legend_has_the_colours_of_its_bars_on_a_dark_page(browser, server, queries):
    """Points and lines are lightened there, and so are theirs in the legend; of bars those with hatches, which the page
    shines through."""
    visitor = Visitor(browser, server, "dark")
    filters = "all => [...new Set(all.map(e => getComputedStyle(e).filter))]"
    page = visitor.go("/memory", queries["/memory"])
    page.locator(".legend .legendpoints").first.wait_for(state="attached")
    assert page.locator(".legend .legendpoints").evaluate_all(filters) == ["none"]
    for paths in (".legend .legendpoints path", ".barlayer .point path"):
        assert page.locator(f"{paths}[style*='url(']").evaluate_all(filters) == ["brightness(1.6)"]
        assert page.locator(f"{paths}:not([style*='url('])").evaluate_all(filters) == ["none"]
    page = visitor.go("/trust", queries["/trust"])
    page.locator(".legend .scatterpts").first.wait_for(state="attached")
    assert page.locator(".legend .scatterpts").evaluate_all(filters) == ["brightness(1.5)"]


@pytest.mark.parametrize("width", [1024, 1440, 3840])
def test_what_a_search_and_a_study_hold_is_read_without_scrolling(browser, server, width: int):
    """Whole, inside the table, at every width of a window."""
    visitor = Visitor(browser, server)
    visitor.page.set_viewport_size({"width": width, "height": 900})
    page = visitor.go("/", {"sort": "-kind"})  # only rows that are seen are there
    cells = page.locator(".ag-cell[col-id=holds]", has_text=re.compile("candidates|points"))
    cells.nth(1).wait_for()
    assert cells.count() == 2
    right = page.locator("#runs").bounding_box()
    for cell in cells.all():
        box = cell.bounding_box()
        assert box["x"] + box["width"] <= right["x"] + right["width"]
        assert cell.evaluate("e => e.scrollWidth <= e.clientWidth && e.scrollHeight <= e.clientHeight")
    visitor.context.close()
    assert visitor.wrong == []


IN_VIEW = """() => {
  const table = document.querySelector("#axis-means .ag-header"), all = [...table.querySelectorAll(".ag-header-cell")];
  const right = table.getBoundingClientRect().right + 1;
  return all.length >= 5 && all.every((one) => {
    const text = one.querySelector(".ag-header-cell-text");
    return one.getBoundingClientRect().right <= right && text.scrollWidth <= text.clientWidth + 1;
  });
}"""


@pytest.mark.parametrize("width", [1024, 1440])
def test_all_columns_of_the_means_along_axes_are_in_view(browser, server, names, width: int):
    visitor = Visitor(browser, server)
    visitor.page.set_viewport_size({"width": width, "height": 900})
    page = visitor.go("/ranks", {"run": names["gpt-320b-frontier-every-rank"]})
    page.locator("#axis-means .ag-row").first.wait_for(state="attached")
    page.wait_for_function(IN_VIEW)
    visitor.context.close()


def test_the_first_tick_of_an_axis_does_not_touch_that_of_the_other(browser, server, names):
    visitor = Visitor(browser, server)
    page = visitor.go("/ranks", {"run": names["gpt-320b-frontier-every-rank"]})
    page.locator("#spread .ytick text").first.wait_for(state="attached")
    lowest = max((tick.bounding_box() for tick in page.locator("#spread .ytick text").all()), key=lambda box: box["y"])
    for tick in page.locator("#spread .xtick text").all():
        box = tick.bounding_box()
        apart = box["x"] > lowest["x"] + lowest["width"] + 2 or box["y"] > lowest["y"] + lowest["height"] + 2
        assert apart, (box, lowest)
    visitor.context.close()


def test_a_bar_of_colours_is_as_light_as_the_points_that_it_explains(browser, server, queries):
    """On a dark page points are lightened, but less where lightness says how much; a map's cells are not."""
    visitor = Visitor(browser, server, "dark")
    for path, expected in (("/configurations", "brightness(1.1)"), ("/ranks", "none")):
        page = visitor.go(path, queries[path])
        page.locator("#content .colorbar .cbfills").first.wait_for(state="attached")
        bar = page.locator("#content .colorbar .cbfills").first
        assert bar.evaluate("one => getComputedStyle(one).filter") == expected, path
        for points in page.locator("#content .js-plotly-plot:has(.colorbar) .scatterlayer .points").all():
            assert points.evaluate("one => getComputedStyle(one).filter") == expected, path
    visitor.context.close()


def test_what_a_filter_is_set_to_is_not_cut_off(browser, server, queries):
    """Of *four_d* or *fsdp* the field of 150 pixels showed a letter."""
    visitor = Visitor(browser, server)
    page = visitor.go("/configurations", {**queries["/configurations"], "fits": "divisibility"})
    label = page.locator("#content .mantine-Pill-label").first
    label.wait_for()
    assert label.evaluate("one => one.scrollWidth - Math.ceil(one.getBoundingClientRect().width)") <= 0
    visitor.context.close()


SAID = """() => {
  const said = document.querySelector("#whatif-status .nothing-new");
  const card = document.querySelector("#whatif-status ~ .mantine-Paper-root");
  if (!said || scrollY < 600) return false;
  const { top } = said.getBoundingClientRect();
  return top > 0 && top < 200 && Number(getComputedStyle(card).opacity) < 0.5;
}"""


def test_what_the_simulation_says_is_seen_from_the_last_field(browser, server, queries):
    """A job that cannot run was said so above the window, beside the figures of the one before."""
    visitor = Visitor(browser, server)
    page = visitor.go("/whatif", {**queries["/whatif"], "batch-sequences": "7"})
    page.locator("#whatif-status .nothing-new").wait_for()
    page.evaluate("scrollTo(0, 700)")
    page.wait_for_function(SAID)
    visitor.context.close()


WHOLE = """() => {
  const grid = document.querySelector("#pairs"), cells = [...grid.querySelectorAll(".ag-row .ag-cell")];
  const names = [...grid.querySelectorAll(".ag-header-cell-text")];
  return cells.length > 4 && [...names, ...cells].every((one) => one.scrollWidth <= one.clientWidth + 1);
}"""


def test_columns_of_a_table_behind_a_tab_are_as_wide_as_what_they_hold(browser, server, queries):
    """They were fitted while the table was hidden: ops were micro0/…, beside an empty half."""
    visitor = Visitor(browser, server)
    page = visitor.go("/trust", queries["/trust"])
    page.get_by_role("tab", name="Table").first.click()
    page.wait_for_function(WHOLE)
    visitor.context.close()
    assert visitor.wrong == []


@pytest.mark.parametrize("width", [400, 640])
def test_the_menu_does_not_lie_on_the_page_in_a_narrow_window(browser, server, queries, width: int):
    """Also what a browser at 200 % makes of a small screen."""
    visitor = Visitor(browser, server)
    visitor.page.set_viewport_size({"width": width, "height": 900})
    page = visitor.go("/memory", queries["/memory"])
    menu, title = (page.locator(name).bounding_box() for name in (".mantine-AppShell-navbar", "#content h1"))
    assert menu["y"] + menu["height"] <= title["y"]
    assert menu["height"] < 300
    for link in page.locator(".mantine-AppShell-navbar a").all():
        box = link.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    visitor.context.close()
    assert visitor.wrong == []


@pytest.mark.parametrize("width", [1024, 1440])
def test_headings_of_sorted_columns_are_whole_and_filters_say_their_unit(browser, server, width: int):
    """Cells have units with prefixes, a filter takes seconds."""
    visitor = Visitor(browser, server)
    visitor.page.set_viewport_size({"width": width, "height": 900})
    page = visitor.go("/")
    page.locator(".ag-row").first.wait_for()
    for column in ("ranks", "error", "peak", "step"):
        heading = page.locator(f".ag-header-cell[col-id={column}]")
        heading.locator(".ag-header-cell-text").click()
        heading.locator(".ag-sort-ascending-icon").wait_for()
        assert heading.locator(".ag-header-cell-text").evaluate("e => e.scrollWidth <= e.clientWidth"), column
    heading.locator(".ag-header-cell-filter-button").click()
    fields = page.locator(".ag-filter input[type=text], .ag-filter input[type=number]")
    fields.first.wait_for()
    assert {field.get_attribute("placeholder") for field in fields.all()} == {"in seconds"}
    visitor.context.close()
    assert visitor.wrong == []


BENEATH = """id => {
  const grid = document.getElementById(id), rows = [...grid.querySelectorAll(".ag-center-cols-container .ag-row")];
  if (!rows.length) return -1;
  const last = Math.max(...rows.map((row) => row.getBoundingClientRect().bottom));
  return grid.getBoundingClientRect().bottom - last;
}"""


def test_a_small_table_is_as_high_as_its_rows(browser, server, names):
    """Beneath the last there was room for some more."""
    visitor = Visitor(browser, server)
    run = {"run": names["gpt-320b-frontier-every-rank"]}
    for path, table in (("/communication", "links"), ("/ranks", "axis-means")):
        page = visitor.go(path, run)
        page.locator(f"#{table} .ag-row").first.wait_for(state="attached")
        page.wait_for_function(f"() => 0 <= ({BENEATH})('{table}') && ({BENEATH})('{table}') < 30")
    visitor.context.close()
    assert visitor.wrong == []


def test_numbers_at_the_ends_of_many_axes_do_not_touch(tmp_path, browser):
    """A search over three strategies in a window of 600 pixels: fifteen axes."""
    job = {key: value for key, value in JOB.items() if key != "grid"}
    context, query = written(tmp_path, ACROSS, {**job, "strategy": "fsdp"}, strategy="fsdp")
    with served(context.settings) as server:
        visitor = Visitor(browser, server)
        visitor.page.set_viewport_size({"width": 600, "height": 900})
        page = visitor.go("/configurations", query)
        page.locator("#parallel .annotation-text").first.wait_for(state="attached")
        boxes = [one.bounding_box() for one in page.locator("#parallel .annotation-text").all()]
        assert len(boxes) >= 24
        for a, b in combinations(boxes, 2):
            apart = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
            assert apart or a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"], (a, b)
        visitor.context.close()
