"""Every page as a function of its address: with good parameters, and with whatever a stranger types."""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go
import pytest
from dash import dcc
from dash.development.base_component import Component

from dashboards.app import carried, content
from dashboards.page import Page, PageContext
from dashboards.pages import PAGES
from dashboards.parts import GRAPH_CONFIG
from dashboards.query import MAX_QUERY, query_of
from tests.dashboards.serving import EVIL
from tests.profiles import part
from tests.tiers import full

NUL = "\x00"
BAD = [
    "",
    "nothing",
    "0" * 12,
    EVIL,
    "../../etc/passwd",
    "/etc/passwd",
    "%2e%2e%2f",
    "x" * 10_000,
    NUL,
    "-1",
    "1e999",
    "nan",
    "0..nan",
    "2..1",
    "9" * 30,
    "0-99999999999",
    ",,,",
    "\ud800",
    "１２",
    "²",
]
KEYS = ("run", "other", "ranks", "show", "step", "colour", "align", "window", "figure", "x", "front", "chosen", "sort")


def text_of(component: Any) -> str:
    """What a browser is sent."""
    from plotly.utils import PlotlyJSONEncoder

    return json.dumps(component, cls=PlotlyJSONEncoder)


def inside(component: Any) -> list[Component]:
    """Return all components within one."""
    return [node for node in component._traverse() if isinstance(node, Component)]


def shows_a_problem(component: Component) -> bool:
    return any(getattr(node, "className", "") == "problem" for node in inside(component))


SOME = ("/verdict",)
by_path = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.path)


@by_path
def test_a_page_shows_real_data(page: Page, context: PageContext, queries):
    shown = content(page, context, queries[page.path])
    assert not shows_a_problem(shown), text_of(shown)[:2000]
    graphs = [node for node in inside(shown) if isinstance(node, dcc.Graph)]
    for graph in graphs:
        assert graph.config == dict(GRAPH_CONFIG)
        assert graph.config["showSendToCloud"] is False
    if page.path not in ("/", "/report"):
        assert any(go.Figure(graph.figure).data for graph in graphs)
    assert len(text_of(shown)) < 6_000_000


@by_path
def test_without_parameters_a_page_says_what_it_needs(page: Page, context: PageContext):
    shown = content(page, context, {})
    assert not shows_a_problem(shown) or "Runs" in text_of(shown)


@pytest.mark.parametrize("page", full(PAGES, *(p for p in PAGES if p.path not in SOME)), ids=lambda p: p.path)
def test_bad_parameters_give_a_message_or_are_ignored(page: Page, context: PageContext, names, queries):
    """No exception but a DescriptionError leaves a page, whichever of its parameters is bad."""
    small = {"run": names["by-hand/predicted"], "other": names["by-hand/measured"]}
    good = queries[page.path] if page.path in ("/configurations", "/scaling") else small
    for number, bad in part(list(enumerate(BAD)), 5):
        assert isinstance(content(page, context, dict.fromkeys(KEYS, bad)), Component)
        for key in (*KEYS[:2], KEYS[2 + number % (len(KEYS) - 2)]):  # each of the others with some
            assert isinstance(content(page, context, {**good, key: bad}), Component)


OTHERS = (
    "gpt-5b-search",
    "weak-scaling",
    "hostile/damaged0",
    "hostile/damaged1",
    "hostile/damaged2",
    "by-hand/measured",
    "testbed/8x1x1x1-predicted",
)


@pytest.mark.parametrize("page", full(PAGES, *(p for p in PAGES if p.path not in SOME)), ids=lambda p: p.path)
def test_an_entry_of_another_kind_gives_a_message(page: Page, context: PageContext, names):
    for label in OTHERS:
        for query in (
            {"run": names[label]},
            {"run": names[label], "other": names[label]},
            {"run": names["by-hand/predicted"], "other": names[label]},
        ):
            assert isinstance(content(page, context, query), Component)


@by_path
def test_names_of_strangers_stay_text(page: Page, context: PageContext, names):
    """Figures take markup: there it is escaped. No component is one that reads HTML."""
    query = {"run": names["hostile/predicted"], "other": names["hostile/measured"]}
    shown = content(page, context, query)
    for node in inside(shown):
        assert not isinstance(node, dcc.Markdown)
        assert not getattr(node, "dangerously_allow_html", False)
        if isinstance(node, dcc.Graph):
            drawn = go.Figure(node.figure).to_json()
            assert not [mark for mark in ("<script", "<img", "<a ", "\\u003cscript", "\\u003ca ") if mark in drawn]


def test_an_unknown_page_is_said(context: PageContext):
    assert "no such page" in text_of(content(None, context, {}))


def test_links_carry_what_their_page_needs():
    page = Page("/p", "P", lambda _c, _q: None, needs="run,other")
    assert carried(page, {"run": "a&b", "other": "c", "show": "x"}) == "?run=a%26b&other=c"
    assert carried(page, {}) == ""
    assert carried(page, {"run": "\ud800"}) == "?run=%3F"  # half a surrogate pair, as JSON can hold


def test_long_addresses_are_not_read_to_the_end():
    assert query_of("?run=a&run=b") == {"run": "a"}
    assert query_of("?a=" + "x" * 10 * MAX_QUERY + "&run=b").keys() == {"a"}
    assert query_of(None) == query_of("") == query_of("?") == {}


def test_what_is_wrong_is_said_in_a_sentence_with_a_way_out(context: PageContext, names):
    """Neither a terminal's count of problems, nor an address whose choices nobody can take back."""
    page = next(page for page in PAGES if page.path == "/timeline")
    query = {"run": names["gpt-320b-frontier"], "ranks": "x", "lay": "rank"}
    shown = content(page, context, query)
    said = text_of(shown)
    assert "ranks = 'x': expected numbers and ranges" in said
    assert "1 problem" not in said
    links = [node.href for node in shown._traverse() if getattr(node, "href", None)]
    assert links == [f"/timeline?run={query['run']}"]
    assert "1 problem" not in str([entry.problem for entry in context.catalog.entries()])
