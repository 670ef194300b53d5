"""Timeline: the predicted run above the measured one, rank by rank and stream by stream."""

from __future__ import annotations

from functools import partial
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from dashboards.events import CATEGORIES, Events
from dashboards.figures.timeline import height, timeline
from dashboards.figures.timeline_picture import WORDS
from dashboards.page import Page, PageContext, Query, state
from dashboards.pages.timeline_pipeline import pipelines, register_pipelines
from dashboards.parts import aria, card, graph, seconds, table
from dashboards.query import query_of
from dashboards.timeline.opened import opened, view_of
from dashboards.timeline.view import Lanes, Pair, View, all_ranks, lanes, unpaired, worst
from twin.description.problems import DescriptionError

GRAPH, WORST, MOVED = "timeline", "timeline-worst", "timeline-moved"
CHOICES = ("ranks", "show", "step", "colour", "align")
"""Controls that say what is drawn, and how."""
AROUND = 6.0
"""A jump to an op shows so many times its length."""
KEYS = "Keys: ← → or A D pan, + − or W S zoom, Home shows all, Escape leaves the figure."


def laid_out(context: PageContext, query: Query, pair: Pair, view: View) -> Lanes:
    """Lay out what is wanted, or take what was laid out for the last window."""
    entry = context.catalog.entry(query["run"])
    what = f"lanes {query.get('other')} {pair.steps[-1].number} {view}"
    return context.catalog.kept(entry, what, lambda: lanes(pair, view))


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
    pair, events = opened(context, query)
    view = view_of(query, pair)
    laid = laid_out(context, query, pair, view)
    figure, words = timeline(pair, events, laid, view, window_of(query.get("window", "")))
    drawn = graph(GRAPH, figure, label="Timeline of the chosen ranks", height=height(laid))
    return html.Div(
        [
            pipelines(context, query, pair, events, view),
            card(
                " above ".join(pair.labels),
                dmc.Text(_summary(pair, laid), span=True),
                dmc.Group(
                    [*_lane_controls(query, pair, events, view), *_pair_controls(pair, view)], align="end", mb="xs"
                ),
                html.Div(drawn, tabIndex=0, id="timeline-frame", **aria("Timeline, movable by keys")),
                html.Div(words, id="timeline-words", role="status"),
                _jumps(pair),
                dcc.Input(id=state("window"), type="hidden", value=query.get("window", "")),
                dcc.Store(id="timeline-place", data=-1),
                dcc.Store(id=MOVED),
            ),
            _worst_card(pair, laid),
        ]
    )


def _lane_controls(query: Query, pair: Pair, events: tuple[Events, ...], view: View) -> list[Component]:
    """Choices of what is drawn: ranks, kinds of ops, the step."""
    return [
        dmc.TextInput(
            id=state("ranks"),
            label=f"ranks ({_ranges(all_ranks(pair))})",
            value=query.get("ranks", ""),
            debounce=600,
            placeholder="all, or 0,3,8-15",
            w=220,
        ),
        dmc.Select(
            id=state("show"),
            label="show",
            w=180,
            value=view.show,
            data=[{"value": "", "label": "everything"}, *({"value": c, "label": WORDS[c]} for c in CATEGORIES)],
        ),
        dmc.Select(
            id=state("step"),
            label="step",
            w=100,
            value=str(pair.steps[-1].number),
            data=[str(n) for n in events[-1].steps],
            allowDeselect=False,
        ),
    ]


def _pair_controls(pair: Pair, view: View) -> list[Component]:
    """Choices that two runs give: colours by error, and an op to align them at."""
    alone = len(pair.steps) == 1
    return [
        dmc.Select(
            id=state("colour"),
            label="colour",
            w=150,
            value=view.colour,
            allowDeselect=False,
            disabled=alone,
            data=[{"value": "kind", "label": "by kind"}, {"value": "error", "label": "by error"}],
        ),
        dmc.Select(
            id=state("align"),
            label="align at",
            w=300,
            value=view.align,
            searchable=True,
            disabled=alone,
            limit=60,
            data=[{"value": "", "label": "the step's begin"}, *_anchors(pair)],
        ),
    ]


def _jumps(pair: Pair) -> Component:
    alone = len(pair.steps) == 1
    return dmc.Group(
        [
            dmc.Button("Largest difference", id="timeline-jump", variant="default", size="xs", disabled=alone),
            dmc.Button("Show all", id="timeline-all", variant="default", size="xs"),
            dmc.Text(KEYS, size="sm", c="var(--quiet)"),
        ]
    )


def _worst_card(pair: Pair, laid: Lanes) -> Component:
    fields = ("op", "rank", "stream", *pair.labels, "difference (ms)")
    columns = [{"field": name, "headerName": name} for name in fields]
    selection = {"rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True}}
    return card(
        "Largest differences",
        "Choose an op to see it on the timeline."
        if len(pair.steps) > 1
        else "Choose two runs on the page Runs to see where they differ.",
        table(WORST, _worst_rows(pair, laid), columns, height=320, dashGridOptions=selection),
    )


def _summary(pair: Pair, laid: Lanes) -> str:
    lengths = ", ".join(f"{label} {seconds(step.length)}" for label, step in zip(pair.labels, pair.steps, strict=True))
    lacking = [
        f"{unpaired(pair, side):,} ops are in the {label} run only"
        for side, label in enumerate(pair.labels)
        if unpaired(pair, side)
    ]
    room = [f"{laid.left_out} ranks are left out; name ranks to see them"] if laid.left_out else []
    return f"Step: {lengths}. " + "".join(f"{words[0].upper()}{words[1:]}. " for words in (*lacking, *room))


def _ranges(ranks: list[int], most: int = 4) -> str:
    """Write ranks as ranges.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    words = [f"{low}-{high}" if high > low else str(low) for low, high in found]
    return ",".join(words[:most]) + (",…" if len(words) > most else "")


def _anchors(pair: Pair, most: int = 2000) -> list[str]:
    """Ops that both runs can be laid over each other at: those that both have."""
    if len(pair.steps) == 1:
        return []
    both = set(pair.steps[1].names)
    return [name for name in pair.steps[0].names if name in both and not name.endswith("/wait")][:most]


def _worst_rows(pair: Pair, laid: Lanes) -> list[dict[str, Any]]:
    rows = []
    for place, difference in worst(pair, laid):
        step, event = pair.steps[1], int(laid.event[place])
        own = float(step.end[event] - step.start[event])
        rows.append(
            {
                "op": step.names[step.base[event]],
                "rank": int(step.rank[event]),
                "stream": step.streams[step.stream[event]],
                pair.labels[0]: seconds(own - difference),
                pair.labels[1]: seconds(own),
                "difference (ms)": round(difference * 1e3, 4),
                "start": float(laid.start[place]),
                "end": float(laid.end[place]),
            }
        )
    return rows


def redraw(context: PageContext, moved: Any, *arguments: Any) -> Any:
    """Draw what the choices say, in the window that a zoom, a jump or a chosen op leads to."""
    *values, _jump, _all, chosen, rows, place, window, search = arguments
    cause = ctx.triggered_id
    at = window_of(window or "")
    if cause == MOVED:
        found = moved_to(moved)
        if found is None:
            return (no_update,) * 5
        at = found or None
    elif cause == "timeline-all":
        at = None
    elif cause == "timeline-jump" and rows:
        place = (int(place or 0) + 1) % len(rows) if isinstance(place, int) else 0
        at = _around(rows[place])
    elif cause == WORST:
        if not chosen:
            return (no_update,) * 5
        at = _around(chosen[0])
    wanted = dict(zip(CHOICES, values, strict=True))
    query = {**query_of(search), **{key: str(value or "") for key, value in wanted.items()}}
    try:
        pair, events = opened(context, query)
        view = view_of(query, pair)
        laid = laid_out(context, query, pair, view)
        figure, words = timeline(pair, events, laid, view, at)
    except DescriptionError as error:
        return no_update, str(error), no_update, no_update, no_update
    figure.update_layout(uirevision=f"{at}")
    changed = isinstance(cause, dict)
    return (
        figure,
        words,
        "" if at is None else f"{at[0]:.9g}..{at[1]:.9g}",
        place,
        _worst_rows(pair, laid) if changed else no_update,
    )


def register(app: Dash, context: PageContext) -> None:
    """Zooming, choices and jumps give another picture."""
    # A figure that only fits itself into the page asks for nothing: its request would supersede a zoom's.
    app.clientside_callback(
        ClientsideFunction("fourfold", "moved"),
        Output(MOVED, "data"),
        Input(GRAPH, "relayoutData"),
        prevent_initial_call=True,
    )
    app.callback(
        Output(GRAPH, "figure"),
        Output("timeline-words", "children"),
        Output(state("window"), "value"),
        Output("timeline-place", "data"),
        Output(WORST, "rowData"),
        Input(MOVED, "data"),
        *(Input(state(key), "value") for key in CHOICES),
        Input("timeline-jump", "n_clicks"),
        Input("timeline-all", "n_clicks"),
        Input(WORST, "selectedRows"),
        State(WORST, "rowData"),
        State("timeline-place", "data"),
        State(state("window"), "value"),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(redraw, context))
    register_pipelines(app, context)


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


def _around(row: Any) -> tuple[float, float]:
    low, high = float(row["start"]), float(row["end"])
    room = AROUND * max(high - low, 1e-9) / 2
    return low - room, high + room


PAGE = Page("/timeline", "Timeline", shown, register, needs="run,other")
