"""What a browser does while a training writes, and what of the timeline comes when its picture is seen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dashboards.pages.training import LOOK_MILLISECONDS
from dashboards.settings import Settings
from tests.dashboards import serving
from tests.dashboards.conftest import TOKEN
from tests.dashboards.test_browser import LONG, Visitor

POINTS = "name => document.querySelector(`#training-${name} .js-plotly-plot`).data[0].x.length"
DRAWN = """([name, points]) => {
  const figure = document.querySelector(`#training-${name} .js-plotly-plot`);
  return figure && figure.data && figure.data[0].x.length === points;
}"""
OBSERVED = """new MutationObserver(() => {
  const [picture, field] = ["#timeline .xtick", ".chooser input"].map((one) => document.querySelector(one));
  if (!picture && field) window.tooEarly = true;
  if (picture && window.firstTop === undefined) window.firstTop = document.querySelector("#timeline").offsetTop;
}).observe(document, { childList: true, subtree: true });"""
STEPS = 40


@pytest.fixture
def training(browser, tmp_path):
    """A page of a training that can be written on, and the way to do it."""
    folder = serving.write_training(tmp_path / "t", STEPS)

    def write(count: int) -> None:
        with (folder / "metrics.jsonl").open("a") as file:
            for step in range(STEPS, STEPS + count):
                file.write(json.dumps(serving.step_line(step, 2.0)) + "\n")

    with serving.served(Settings(tmp_path, token=TOKEN)) as server:
        visitor = Visitor(browser, server)
        page = visitor.go("/training")
        page.wait_for_function(DRAWN, arg=["loss", STEPS])
        yield page, write
        visitor.context.close()
    assert visitor.wrong == []


def test_points_are_added_to_what_is_seen_alone(training):
    """The figure that is there grows, with what is said above it; what is below the fold does when it is reached."""
    page, write = training
    page.evaluate("document.querySelector('#training-loss .js-plotly-plot').same = true")
    write(3)
    page.wait_for_function(DRAWN, arg=["loss", STEPS + 3])
    assert page.evaluate("document.querySelector('#training-loss .js-plotly-plot').same")
    assert page.evaluate(POINTS, "seconds") == STEPS
    page.locator("#training-seconds").scroll_into_view_if_needed()
    page.wait_for_function(DRAWN, arg=["seconds", STEPS + 3])
    page.locator("#training-table").scroll_into_view_if_needed()
    page.locator("#training-table .ag-cell", has_text=str(STEPS + 3)).first.wait_for()


def test_a_hidden_tab_asks_for_nothing(training):
    page, write = training
    hide = """hidden => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    page.wait_for_timeout(500)  # what is on its way comes
    asked: list[Any] = []
    page.on("request", lambda request: asked.append(request.url))
    write(2)
    page.wait_for_timeout(2 * LOOK_MILLISECONDS)
    assert asked == []
    page.evaluate(hide, False)
    page.wait_for_function(DRAWN, arg=["loss", STEPS + 2], timeout=LONG)


def test_fields_come_after_the_picture_and_move_nothing(browser, server, names):
    """While the picture is held up no field is there; when they come the picture stays where it is."""
    visitor = Visitor(browser, server)
    run = {"run": names["gpt-320b-frontier"]}
    visitor.go("/timeline", run).locator("#timeline .xtick").first.wait_for(state="attached")
    visitor.page.add_init_script(OBSERVED)
    page = visitor.go("/timeline", run)
    page.locator(".chooser input").first.wait_for()
    page.locator("#timeline-jump").wait_for()
    assert page.locator(".chooser input").count() >= 2
    assert page.evaluate("window.tooEarly") is None
    top = page.evaluate("document.querySelector('#timeline').offsetTop")
    assert abs(top - page.evaluate("window.firstTop")) <= 4
    visitor.context.close()
    assert visitor.wrong == []


def test_a_page_without_a_picture_has_its_fields_at_once(browser, server, names):
    """Of a timeline that cannot be drawn, as of any other page."""
    visitor = Visitor(browser, server)
    for path, query in (("/timeline", {"run": names["training"]}), ("/memory", {})):
        page = visitor.go(path, query)
        page.locator(".chooser input").first.wait_for(timeout=LONG)
    visitor.context.close()
