"""What-if: change a job and see its step change, simulated while you look."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any
from urllib.parse import urlencode

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from dashboards.figures.change import change
from dashboards.page import Page, PageContext, Query, state
from dashboards.pages.timeline import moved_to
from dashboards.parts import card
from dashboards.query import query_of
from dashboards.whatif.base import base_of, job_file
from dashboards.whatif.controls import control, select_choices, unseen
from dashboards.whatif.form import FIRST, KEYS, LEVER_KEYS, WHOLE_LEVERS, changed, fields_of
from dashboards.whatif.kept import KEPT, register_kept
from dashboards.whatif.look import after, known_answer, looked, named, wrong
from dashboards.whatif.pool import Pool
from dashboards.whatif.results import CHANGE, FIGURES, PARTS, TIMELINE, drawn, figure_rows, part_rows, results
from twin.description.problems import DescriptionError

POLL_MILLISECONDS = 120
"""Time between two looks for an answer: short beside a simulation, long beside a request."""
KINDS = ("predicted", "measured", "training", "watch", "search")
TITLES = {
    "what": "Model and machine",
    "levers": "Levers",
    "grid": "Grid",
    "batch": "Batch",
    "overlap": "Overlap",
    "data_reduction": "Data reduction",
    "communication_precision": "Types on the way over z",
    "options": "Options",
    "straggler": "A slow device",
}
SELECTS = tuple(key for key in KEYS if key.startswith("grid-") or key == "library")
"""Fields whose choices follow from others."""


def shown(context: PageContext, query: Query) -> Component:
    """Show the form, filled with what the address says; the answer comes later."""
    form, answer = _form(context, query), results(context, query)
    return html.Div(
        [
            dcc.Store(id=KEPT, storage_type="session"),
            dmc.Grid([dmc.GridCol(form, span={"base": 12, "lg": 5}), dmc.GridCol(answer, span={"base": 12, "lg": 7})]),
            dcc.Store(id="whatif-visitor", data=secrets.token_hex(16)),
            dcc.Store(id="whatif-asked"),
            dcc.Store(id="whatif-ticket"),
            dcc.Interval(id="whatif-poll", interval=POLL_MILLISECONDS, max_intervals=0),
            dcc.Store(id="whatif-done"),
            dcc.Download(id="whatif-file"),
        ]
    )


def _form(context: PageContext, query: Query) -> Component:
    base, label = base_of(context.catalog, query.get("run"), query.get("candidate", ""))
    choices = select_choices(base, query)
    groups: list[Component] = []
    fields = fields_of(base.strategy)
    for group in dict.fromkeys(field.group for field in fields):
        controls = dmc.SimpleGrid(
            [control(f, base, query, choices) for f in fields if f.group == group], cols={"base": 1, "sm": 2}, mb="sm"
        )
        head = html.Summary(TITLES.get(group, group.replace("_", " ").capitalize()))
        groups.append(
            html.Details(
                [head, controls],
                open=group in FIRST or any(query.get(f.key) for f in fields if f.group == group),
                className="fields",
            )
        )
    buttons = dmc.Group(
        [
            dmc.Button("Keep this one", id="whatif-keep", size="xs"),
            dmc.Button("Download as job file", id="whatif-save", variant="default", size="xs"),
            dmc.Button("Stop", id="whatif-stop", variant="default", size="xs"),
            dmc.Anchor(
                dmc.Button("All as it was", variant="default", size="xs"),
                href="?" + urlencode({key: query[key] for key in ("run", "candidate") if query.get(key)}),
            ),
        ],
        mt="xs",
    )
    return card(
        "The job",
        f"From {label}; what you change is simulated at once. Empty fields are as they were.",
        *groups,
        unseen([key for key in KEYS if key not in {field.key for field in fields}]),
        buttons,
    )


def given(values: Any, search: Any) -> dict[str, str]:
    """Return what the controls say, as an address would; a lever at 0 says nothing."""
    query = {k: v for k, v in query_of(search).items() if k in ("run", "candidate")}
    for key, value in zip(KEYS, values, strict=True):
        text = "" if value is None else str(value)
        if text and not (key.startswith("scale-") and text in ("0", "0.0", "-0")):
            query[key] = text
    return query


def ask(context: PageContext, pool: Pool, *arguments: Any) -> Any:
    """Ask for a simulation of what the controls say now, or stop the one under way."""
    asked, _stop, *values, visitor, search, ticks = arguments
    visitor, asked_at = named(visitor), float(asked) if isinstance(asked, int | float) else 0.0
    if ctx.triggered_id == "whatif-stop":
        pool.cancel(visitor)
        return (None, no_update, dmc.Alert("Stopped.", color="gray", mb="md"), *(no_update for _ in SELECTS))
    query = given(values, search)
    choices: Any = [no_update for _ in SELECTS]
    try:
        base, _ = base_of(context.catalog, query.get("run"), query.get("candidate", ""))
        known = select_choices(base, query)
        choices = [
            [*known[key], *({query.get(key, "")} - {*known[key], ""})] if key in known else no_update for key in SELECTS
        ]
        ticket = pool.ask(visitor, base.model_dump(mode="json", by_alias=True), changed(base, query), asked_at)
    except DescriptionError as error:
        pool.cancel(visitor, asked_at)
        return None, no_update, wrong(error), *choices
    # a look at what was asked before may be under way: its tick is counted already, and it asks for no other
    return ticket, after(ticks, 3), dmc.Alert("Simulating …", color="gray", mb="md"), *choices


def look(pool: Pool, ticks: Any, ticket: Any, visitor: Any) -> Any:
    """Look for the answer."""
    return looked(pool, named(visitor), ticket, ticks)


def show(pool: Pool, ticket: Any) -> Any:
    """Show the answer that came."""
    answer = known_answer(pool, ticket)
    if answer is None:
        return (no_update,) * 5
    return (change(answer.old, answer.new), part_rows(answer), figure_rows(answer), *drawn(answer, None))


def zoom(pool: Pool, moved: Any, ticket: Any) -> Any:
    """Draw the window of the timeline that was zoomed to."""
    window = moved_to(moved)
    answer = None if window is None else known_answer(pool, ticket)
    return (no_update, no_update) if answer is None else drawn(answer, window or None)


def save(context: PageContext, *arguments: Any) -> Any:
    """Give what the controls say as a job file."""
    clicks, *values, search = arguments
    if not clicks:
        return no_update, no_update
    query = given(values, search)
    try:
        base, _ = base_of(context.catalog, query.get("run"), query.get("candidate", ""))
        content = job_file(changed(base, query))
    except DescriptionError as error:
        return no_update, wrong(error)
    return {"content": content, "filename": "what-if.yaml"}, no_update


def register(app: Dash, context: PageContext) -> None:
    """A change asks for a simulation; an interval fetches it."""
    pool = Pool(context.settings.workers)
    _register_asking(app, context, pool)
    register_kept(app, context, pool)
    # a lever's number and its slider are one value: the one that was moved sets the other
    for key in LEVER_KEYS:
        both = [(state(key), "value"), ({"type": "times", "key": key}, "value")]
        app.clientside_callback(
            ClientsideFunction("fourfold", "powers" if key in WHOLE_LEVERS else "lever"),
            *(Output(*one, allow_duplicate=True) for one in both),
            *(Input(*one) for one in both),
            prevent_initial_call=True,
        )
    _register_answers(app, pool)
    app.callback(
        Output("whatif-file", "data"),
        Output("whatif-status", "children", allow_duplicate=True),
        Input("whatif-save", "n_clicks"),
        *(State(state(key), "value") for key in KEYS),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(save, context))


def _register_asking(app: Dash, context: PageContext, pool: Pool) -> None:
    # requests may overtake one another on their way: the page says in which order it made them
    app.clientside_callback(
        ClientsideFunction("fourfold", "asked"),
        Output("whatif-asked", "data"),
        *(Input(state(key), "value") for key in KEYS),
    )
    app.callback(
        Output("whatif-ticket", "data"),
        Output("whatif-poll", "max_intervals"),
        Output("whatif-status", "children"),
        *(Output(state(key), "data") for key in SELECTS),
        Input("whatif-asked", "data"),
        Input("whatif-stop", "n_clicks"),
        *(State(state(key), "value") for key in KEYS),
        State("whatif-visitor", "data"),
        State("address", "search"),
        State("whatif-poll", "n_intervals"),
    )(partial(ask, context, pool))
    app.callback(
        Output("whatif-poll", "max_intervals", allow_duplicate=True),
        Output("whatif-done", "data"),
        Output("whatif-status", "children", allow_duplicate=True),
        Output("whatif-ticket", "data", allow_duplicate=True),
        Input("whatif-poll", "n_intervals"),
        State("whatif-ticket", "data"),
        State("whatif-visitor", "data"),
        prevent_initial_call=True,
    )(partial(look, pool))


def _register_answers(app: Dash, pool: Pool) -> None:
    app.callback(
        Output(CHANGE, "figure"),
        Output(PARTS, "rowData"),
        Output(FIGURES, "rowData"),
        Output(TIMELINE, "figure"),
        Output("whatif-words", "children"),
        Input("whatif-done", "data"),
        prevent_initial_call=True,
    )(partial(show, pool))
    app.callback(
        Output(TIMELINE, "figure", allow_duplicate=True),
        Output("whatif-words", "children", allow_duplicate=True),
        Input(TIMELINE, "relayoutData"),
        State("whatif-done", "data"),
        prevent_initial_call=True,
    )(partial(zoom, pool))


PAGE = Page("/whatif", "What-if", shown, register, needs="run", kinds=KINDS)
