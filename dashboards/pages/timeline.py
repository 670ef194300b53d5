"""Timeline: predicted above measured, or one run alone, rank by rank and stream by stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from dashboards.figures.timeline import height, timeline, whole_window
from dashboards.figures.timeline_marks import MAP_PIXELS, mark, overview, path, reframed
from dashboards.later import Later
from dashboards.page import Page, PageContext, Query, state
from dashboards.pages.timeline_files import register_files
from dashboards.pages.timeline_later import PICKED, SEEN, register_later
from dashboards.pages.timeline_open import CHOICES, Opened, open_all
from dashboards.pages.timeline_parts import (
    FOUND,
    WINDOW,
    WORST_PLACE,
    found_table,
    jumps,
    lane_controls,
    pair_controls,
    panel,
    plain_table,
    summary,
    worst_card,
    worst_rows,
    worst_table,
)
from dashboards.pages.timeline_pipeline import pipelines, register_pipelines
from dashboards.parts import aria, card, graph, reasons
from dashboards.query import query_of
from dashboards.timeline.inspect import chosen_op, looked_at
from dashboards.timeline.lanes import Lanes
from dashboards.timeline.meetings import critical_path
from dashboards.timeline.opened import RANKS_OF, opened
from dashboards.timeline.statistics import found_rows, window_rows
from dashboards.timeline.view import Pair
from twin.description.problems import DescriptionError, Problem

GRAPH, MAP, MOVED, PANEL = "timeline", "timeline-map", "timeline-moved", "timeline-panel"
AROUND = 6.0
"""A jump to an op shows so many times its length."""


def drawn(found: Opened, query: Query, at: tuple[float, float] | None) -> tuple[go.Figure, str]:
    """Draw a window of the lanes, with the chosen op framed and the critical path if wanted; say what is seen."""
    figure, words = timeline(found.pair, found.events, found.laid, found.view, at)
    side = query.get("path", "")
    if side in ("0", "1") and int(side) < len(found.meetings):
        links = critical_path(found.pair.steps[int(side)], found.meetings[int(side)])
        words += " " + path(figure, found.pair, found.laid, int(side), links)
    if op := chosen_op(query.get("op", ""), found.pair):
        mark(figure, found.pair, found.laid, found.meetings[op[0]] if found.meetings else None, *op)
    return figure, words


def panel_of(found: Opened, query: Query) -> Component:
    """Show the panel of the op that an address names."""
    op = chosen_op(query.get("op", ""), found.pair)
    if op is None or not found.meetings:
        return panel(None)
    return panel(looked_at(found.pair, found.events, found.meetings[op[0]], *op))


def window_of(text: str) -> tuple[float, float] | None:
    """Read a window of an address, such as 0.01..0.025; None if it is none.

    >>> window_of("0.5..1.5"), window_of("x"), window_of("2..1")
    ((0.5, 1.5), None, None)
    """
    low, _, high = text.partition("..")
    try:
        found = float(low), float(high)
    except ValueError:
        return None
    return found if -1e9 < found[0] < found[1] < 1e9 else None


def shown(context: PageContext, query: Query) -> Component:
    """Show one run, or two paired op by op."""
    found = open_all(context, query, meet=needs_meetings(query))
    pair, laid, at = found.pair, found.laid, window_of(query.get("window", ""))
    figure, words = drawn(found, query, at)
    whole = whole_window(laid)
    picture = graph(GRAPH, figure, label="Timeline of the chosen ranks", height=height(laid))
    small = graph(MAP, overview(laid, whole, at or whole), label="The whole step; drag to zoom", height=MAP_PIXELS)
    controls = [*lane_controls(query, pair, found.view), *pair_controls(query, pair, found.view)]
    return html.Div(
        [
            pipelines(context, query, pair, found.events, found.view),
            card(
                " above ".join(pair.labels),
                dmc.Text(summary(pair, laid), span=True),
                dmc.Group(controls, align="end", mb="xs"),
                Later(small, height=MAP_PIXELS),
                html.Div(picture, tabIndex=0, id="timeline-frame", **aria("Timeline, movable by keys")),
                html.Div(words, id="timeline-words", role="status"),
                Later(jumps(pair)),
                *(dcc.Input(id=state(key), type="hidden", value=query.get(key, "")) for key in ("window", "op")),
                dcc.Store(id="timeline-place", data=-1),
                *(dcc.Store(id=name) for name in (MOVED, PICKED, SEEN)),
            ),
            html.Div(panel_of(found, query), id=PANEL, role="status"),
            Later([_window_card(pair, laid, at or whole), _found_card(query, pair, laid), worst_card(pair)]),
        ]
    )


def needs_meetings(query: Query) -> bool:
    """Tell whether what is asked for needs to know who met whom, which takes a moment for millions of events."""
    return bool(query.get("op") or query.get("path"))


def _window_card(pair: Pair, laid: Lanes, window: tuple[float, float]) -> Component:
    rows = window_rows(pair, laid, window)
    words = (
        "What ops of each kind take in this window, mean over the ranks on the lanes; of several at once each counts."
    )
    return card("In this window", words, html.Div(plain_table(rows), id=WINDOW))


def _found_card(query: Query, pair: Pair, laid: Lanes) -> Component:
    text = query.get("find", "")
    rows = found_rows(pair, laid, text) if text else []
    search = dmc.TextInput(
        id=state("find"),
        value=text,
        debounce=500,
        placeholder="part of a name, such as all_gather",
        w=320,
        mb="xs",
        size="xs",
        **aria("Search ops by name"),
    )
    listed = html.Div(found_table(pair, rows) if text else [], id="timeline-found-rows")
    words = "Totals over the ranks on the lanes; choose a row to go to the first of them."
    return card("Search ops by name", words, search, listed)


def redraw(context: PageContext, moved: Any, *arguments: Any) -> Any:
    """Draw what the choices say, in the window that a zoom, a jump or a chosen op leads to."""
    *values, _jump, _all, chosen, found_row, clicked, _close, place, window, op, search = arguments
    cause, nothing = ctx.triggered_id, (no_update,) * (8 + len(RANKS_OF))
    at = window_of(window or "")
    wanted = dict(zip(CHOICES, values, strict=True))
    query = {**query_of(search), **{key: str(value or "") for key, value in wanted.items()}, "op": str(op or "")}
    try:
        if cause == MOVED:
            place_of = moved_to(moved)
            if place_of is None:
                return nothing
            at = place_of or None
        elif cause == "timeline-all":
            at = None
        elif cause == "timeline-close":
            query["op"] = ""
        elif cause == GRAPH:
            picked = _clicked(clicked)
            if picked is None or picked == query["op"]:
                return nothing
            query["op"] = picked
        elif cause == "timeline-jump":
            before = open_all(context, query, meet=False)
            if rows := worst_rows(before.pair, before.laid):
                place = (place + 1) % len(rows) if isinstance(place, int) else 0
                at, query["op"] = _around(rows[place]), _key(rows[place])
        elif cause in (PICKED, FOUND):
            row = (chosen if cause == PICKED else found_row) or None
            if not row:
                return nothing
            query["op"] = _key(row[0])
            at = _around(row[0]) if "start" in row[0] else around_op(context, query)
        found = open_all(context, query, meet=needs_meetings(query))
        figure, words = drawn(found, query, at)
        whole, relaid = whole_window(found.laid), isinstance(cause, dict)  # a control, which may lay out other lanes
        figure.update_layout(uirevision=f"{at}", height=height(found.laid))
        return (
            figure,
            overview(found.laid, whole, at or whole) if relaid else reframed(at or whole),
            words,
            "" if at is None else f"{at[0]:.9g}..{at[1]:.9g}",
            place,
            worst_table(found.pair, found.laid) if relaid else no_update,
            query["op"],
            no_update if cause == MOVED else panel_of(found, query),
            *wrong_of(()),
        )
    except DescriptionError as error:
        return no_update, no_update, reasons(error), *nothing[3:8], *wrong_of(error.problems)


def wrong_of(problems: Sequence[Problem]) -> list[str]:
    """Say for each field that names ranks what is wrong with it; nothing where nothing is."""
    return [next((problem.message for problem in problems if problem.path == key), "") for key in RANKS_OF]


def around_op(context: PageContext, query: Query) -> tuple[float, float] | None:
    """Return a window around the op that an address names; None if it names none. Raises DescriptionError."""
    pair, _ = opened(context, query)
    op = chosen_op(query.get("op", ""), pair)
    if op is None:
        return None
    step, shift = pair.steps[op[0]], pair.shift[op[0]]
    return _around({"start": float(step.start[op[1]]) + shift, "end": float(step.end[op[1]]) + shift})


def restate(context: PageContext, window: Any, find: Any, *arguments: Any) -> Any:
    """Add up the window that is seen now, and the ops whose names hold what is searched."""
    *values, search = arguments
    wanted = dict(zip(CHOICES, values, strict=True))
    query = {**query_of(search), **{key: str(value or "") for key, value in wanted.items()}}
    try:
        found = open_all(context, query, meet=False)
    except DescriptionError:
        return no_update, no_update
    at = window_of(str(window or "")) or whole_window(found.laid)
    text = str(find or "")[:120]
    rows = found_rows(found.pair, found.laid, text) if text else []
    return plain_table(window_rows(found.pair, found.laid, at)), found_table(found.pair, rows) if text else []


def register(app: Dash, context: PageContext) -> None:
    """Zooming, choices and jumps give another picture."""
    # A figure that only fits itself into the page asks for nothing: its request would supersede a zoom's. So what it
    # moves is written by the script, and not an output, for which Dash would keep the drawing waiting.
    app.clientside_callback(
        ClientsideFunction("fourfold", "moved"),
        Input(GRAPH, "relayoutData"),
        Input(MAP, "relayoutData"),
        prevent_initial_call=True,
    )
    app.callback(
        Output(GRAPH, "figure"),
        Output(MAP, "figure"),
        Output("timeline-words", "children"),
        Output(state("window"), "value"),
        Output("timeline-place", "data"),
        Output(WORST_PLACE, "children"),
        Output(state("op"), "value"),
        Output(PANEL, "children"),
        *(Output(state(key), "error") for key in RANKS_OF),
        Input(MOVED, "data"),
        *(Input(state(key), "value") for key in CHOICES),
        Input("timeline-jump", "n_clicks"),
        Input("timeline-all", "n_clicks"),
        Input(PICKED, "data"),
        Input(FOUND, "selectedRows", allow_optional=True),
        Input(GRAPH, "clickData"),
        Input("timeline-close", "n_clicks", allow_optional=True),
        State("timeline-place", "data"),
        State(state("window"), "value"),
        State(state("op"), "value"),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(redraw, context))
    app.callback(
        Output(WINDOW, "children"),
        Output("timeline-found-rows", "children"),
        Input(state("window"), "value"),
        Input(state("find"), "value"),
        *(Input(state(key), "value") for key in CHOICES),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(restate, context))
    register_later(app, context)
    app.clientside_callback(
        ClientsideFunction("fourfold", "svg"),
        Output("timeline-svg", "n_clicks"),
        Input("timeline-svg", "n_clicks"),
        prevent_initial_call=True,
    )
    register_pipelines(app, context)
    register_files(app, context)


def moved_to(data: Any) -> tuple[float, float] | tuple[()] | None:
    """Read what Plotly says of a zoom: a window, () for all, None if the time axis was not touched."""
    if not isinstance(data, dict):
        return None
    if data.get("xaxis.autorange"):
        return ()
    low, high = data.get("xaxis.range[0]"), data.get("xaxis.range[1]")
    if low is None and isinstance(data.get("xaxis.range"), list):
        low, high = data["xaxis.range"]
    if not isinstance(low, int | float) or not isinstance(high, int | float) or not low < high:
        return None
    return float(low), float(high)


def _clicked(data: Any) -> str | None:
    """Read which op a bar stands for; None of what is no bar."""
    points = data.get("points") if isinstance(data, dict) else None
    found = points[0].get("customdata") if isinstance(points, list) and points and isinstance(points[0], dict) else None
    return found if isinstance(found, str) and len(found) < 20 else None


def _key(row: Any) -> str:
    """Return the op of a table's row; of a gap the op behind it."""
    return ".".join(str(row.get("key", "")).split(".")[:2])


def _around(row: Any) -> tuple[float, float]:
    low, high = float(row["start"]), float(row["end"])
    room = AROUND * max(high - low, 1e-9) / 2
    return low - room, high + room


PAGE = Page("/timeline", "Timeline", shown, register, needs="run,other,step", kinds=("predicted", "measured"), runs=1)
