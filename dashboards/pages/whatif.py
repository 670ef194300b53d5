"""What-if: change a job and see its step change, simulated while you look."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from dashboards.events import columns
from dashboards.figures.change import NAMES, change, terms
from dashboards.figures.timeline import timeline
from dashboards.page import Context, Page, Query, state
from dashboards.pages.timeline import moved_to
from dashboards.parts import NUMBER, aria, card, finished, graph, table, with_table
from dashboards.query import query_of
from dashboards.timeline.step import step_of
from dashboards.timeline.view import View, lanes, paired
from dashboards.whatif.base import base_of, job_file
from dashboards.whatif.controls import control, select_choices
from dashboards.whatif.form import FIELDS, GROUPS, KEYS, changed
from dashboards.whatif.look import after, known_answer, looked, named, wrong
from dashboards.whatif.pool import Answer, Pool
from twin.description.problems import DescriptionError

POLL_MILLISECONDS = 120
TITLES = {
    "what": "Model and machine",
    "levers": "Levers",
    "grid": "Grid",
    "batch": "Batch",
    "overlap": "Overlap",
    "data_reduction": "Data reduction",
    "options": "Options",
    "straggler": "A slow device",
}
FOLDED = ("overlap", "data_reduction", "options")
SELECTS = tuple(field.key for field in FIELDS if field.key.startswith("grid-") or field.key == "library")
"""Fields whose choices follow from others."""
TIMELINE, CHANGE, PARTS, FIGURES = ("whatif-timeline", "whatif-change", "whatif-parts", "whatif-figures")


def shown(context: Context, query: Query) -> Component:
    """Show the form, filled with what the address says; the answer comes later."""
    base, label = base_of(context.catalog, query.get("run"))
    choices = select_choices(base, query)
    groups = []
    for group in GROUPS:
        controls = dmc.SimpleGrid(
            [control(f, base, query, choices) for f in FIELDS if f.group == group], cols={"base": 1, "sm": 2}, mb="sm"
        )
        head = html.Summary(TITLES[group])
        groups.append(
            html.Details(
                [head, controls],
                open=group not in FOLDED or any(query.get(f.key) for f in FIELDS if f.group == group),
                className="fields",
            )
        )
    buttons = dmc.Group(
        [
            dmc.Button("Download as job file", id="whatif-save", variant="default", size="xs"),
            dmc.Button("Stop", id="whatif-stop", variant="default", size="xs"),
            dmc.Anchor(
                dmc.Button("All as it was", variant="default", size="xs"),
                href="?" + (f"run={query['run']}" if query.get("run") else ""),
            ),
        ],
        mt="xs",
    )
    form = card(
        "The job",
        f"From {label}; what you change is simulated at once. Empty fields are as they were.",
        *groups,
        buttons,
    )
    results = html.Div(
        [
            html.Div(id="whatif-status", role="status", **aria("What the simulation says")),
            card(
                "Step",
                "From the step as it is to the step as it would be; the parts add up.",
                with_table(
                    graph(CHANGE, _first(context, query), label="Parts of the step, before and after", height=380),
                    table(PARTS, [], headed("part", *_seconds_columns())),
                ),
            ),
            card(
                "Figures",
                "Both jobs, side by side.",
                table(FIGURES, [], headed("figure", *NAMES, "change (%)"), height=330),
            ),
            card(
                "Timeline",
                html.Span("The same ranks before and after.", id="whatif-words"),
                graph(TIMELINE, finished(go.Figure()), label="Timeline of a few ranks, before and after", height=520),
            ),
        ]
    )
    return html.Div(
        [
            dmc.Grid([dmc.GridCol(form, span={"base": 12, "lg": 5}), dmc.GridCol(results, span={"base": 12, "lg": 7})]),
            dcc.Store(id="whatif-visitor", data=secrets.token_hex(16)),
            dcc.Store(id="whatif-asked"),
            dcc.Store(id="whatif-ticket"),
            dcc.Interval(id="whatif-poll", interval=POLL_MILLISECONDS, max_intervals=0),
            dcc.Store(id="whatif-done"),
            dcc.Download(id="whatif-file"),
        ]
    )


def _first(context: Context, query: Query) -> go.Figure:
    """Until the first answer, the step as the run says it was predicted, if it says so."""
    head = context.catalog.entry(query["run"]).head if query.get("run") else {}
    figures: Any = head.get("figures")
    try:
        return change(figures, figures)
    except (KeyError, TypeError, ValueError, AttributeError):
        return finished(go.Figure())


def _seconds_columns() -> list[str]:
    return [f"{name} (s)" for name in (*NAMES, "difference")]


def headed(*names: str) -> list[dict[str, Any]]:
    """Columns that are called what they hold; numbers but for the first."""
    columns: list[dict[str, Any]] = [{"field": name, "headerName": name} for name in names]
    return [columns[0], *(column | NUMBER for column in columns[1:])]


def part_rows(answer: Answer) -> list[dict[str, Any]]:
    """Parts of both steps."""
    rows = [(t.label, t.predicted_seconds, t.measured_seconds) for t in terms(answer.old, answer.new)]
    rows.append(("step", answer.old["step_seconds"], answer.new["step_seconds"]))
    heads = ("part", *_seconds_columns())
    return [dict(zip(heads, (name, old, new, new - old), strict=True)) for name, old, new in rows]


def figure_rows(answer: Answer) -> list[dict[str, Any]]:
    """Figures of both jobs."""

    def figures(of: Mapping[str, Any]) -> dict[str, float]:
        return {
            "step (s)": of["step_seconds"],
            "tokens per second": of["tokens_per_second"],
            "of peak (%)": of["hardware_percent_of_peak"],
            "of peak, without recomputation (%)": of["model_percent_of_peak"],
            "exposed communication (s)": of["exposed_communication_seconds"],
            "memory of a rank (GB)": of["memory"]["per_rank_bytes"] / 1e9,
            "energy of a step, devices (MJ)": of["energy_joules"] / 1e6,
            "ranks": of["ranks"],
            "micro-steps": of["micro_steps"],
        }

    old, new = figures(answer.old), figures(answer.new)
    return [
        {
            "figure": name,
            NAMES[0]: float(f"{was:.6g}"),
            NAMES[1]: float(f"{new[name]:.6g}"),
            "change (%)": round(100 * (new[name] / was - 1), 2) if was else None,
        }
        for name, was in old.items()
    ]


def drawn(answer: Answer, window: tuple[float, float] | None) -> tuple[Any, str]:
    """Draw the same ranks of both jobs on one axis, and say what is seen."""
    if not answer.tables:
        return (no_update, "The step has too many ops to be drawn here; download the job and simulate it with --out.")
    events = tuple(columns(one) for one in answer.tables)
    pair = paired(NAMES, tuple(step_of(one, None) for one in events))
    view = View()
    figure, words = timeline(pair, events, lanes(pair, view), view, window)
    figure.update_layout(uirevision=f"{window}")
    return figure, f"{NAMES[0].capitalize()} above {NAMES[1]}. {words}"


def given(values: Any, search: Any) -> dict[str, str]:
    """Return what the controls say, as an address would; a lever at 0 says nothing."""
    query = {k: v for k, v in query_of(search).items() if k == "run"}
    for key, value in zip(KEYS, values, strict=True):
        text = "" if value is None else str(value)
        if text and not (key.startswith("scale-") and text in ("0", "0.0", "-0")):
            query[key] = text
    return query


def register(app: Dash, context: Context) -> None:
    """A change asks for a simulation; an interval fetches it."""
    pool = Pool(context.settings.workers)
    # requests may overtake one another on their way: the page says in which order it made them
    app.clientside_callback(
        ClientsideFunction("fourfold", "asked"),
        Output("whatif-asked", "data"),
        *(Input(state(key), "value") for key in KEYS),
    )

    @app.callback(
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
    )
    def ask(*arguments: Any) -> Any:
        asked, _stop, *values, visitor, search, ticks = arguments
        visitor, asked_at = named(visitor), float(asked) if isinstance(asked, int | float) else 0.0
        if ctx.triggered_id == "whatif-stop":
            pool.cancel(visitor)
            return (None, no_update, dmc.Alert("Stopped.", color="gray", mb="md"), *(no_update for _ in SELECTS))
        query = given(values, search)
        choices: Any = [no_update for _ in SELECTS]
        try:
            base, _ = base_of(context.catalog, query.get("run"))
            known = select_choices(base, query)
            choices = [[*known[key], *({query.get(key, "")} - {*known[key], ""})] for key in SELECTS]
            ticket = pool.ask(visitor, base.model_dump(mode="json", by_alias=True), changed(base, query), asked_at)
        except DescriptionError as error:
            pool.cancel(visitor, asked_at)
            return None, no_update, wrong(error), *choices
        # a look at what was asked before may be under way: its tick is counted already, and it asks for no other
        return ticket, after(ticks, 3), dmc.Alert("Simulating …", color="gray", mb="md"), *choices

    @app.callback(
        Output("whatif-poll", "max_intervals", allow_duplicate=True),
        Output("whatif-done", "data"),
        Output("whatif-status", "children", allow_duplicate=True),
        Output("whatif-ticket", "data", allow_duplicate=True),
        Input("whatif-poll", "n_intervals"),
        State("whatif-ticket", "data"),
        State("whatif-visitor", "data"),
        prevent_initial_call=True,
    )
    def look(ticks: Any, ticket: Any, visitor: Any) -> Any:
        return looked(pool, named(visitor), ticket, ticks)

    @app.callback(
        Output(CHANGE, "figure"),
        Output(PARTS, "rowData"),
        Output(FIGURES, "rowData"),
        Output(TIMELINE, "figure"),
        Output("whatif-words", "children"),
        Input("whatif-done", "data"),
        prevent_initial_call=True,
    )
    def show(ticket: Any) -> Any:
        answer = known_answer(pool, ticket)
        if answer is None:
            return (no_update,) * 5
        return (change(answer.old, answer.new), part_rows(answer), figure_rows(answer), *drawn(answer, None))

    @app.callback(
        Output(TIMELINE, "figure", allow_duplicate=True),
        Output("whatif-words", "children", allow_duplicate=True),
        Input(TIMELINE, "relayoutData"),
        State("whatif-done", "data"),
        prevent_initial_call=True,
    )
    def zoom(moved: Any, ticket: Any) -> Any:
        window = moved_to(moved)
        answer = None if window is None else known_answer(pool, ticket)
        return (no_update, no_update) if answer is None else drawn(answer, window or None)

    @app.callback(
        Output("whatif-file", "data"),
        Output("whatif-status", "children", allow_duplicate=True),
        Input("whatif-save", "n_clicks"),
        *(State(state(key), "value") for key in KEYS),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def save(*arguments: Any) -> Any:
        clicks, *values, search = arguments
        if not clicks:
            return no_update, no_update
        query = given(values, search)
        try:
            base, _ = base_of(context.catalog, query.get("run"))
            content = job_file(changed(base, query))
        except DescriptionError as error:
            return no_update, wrong(error)
        return {"content": content, "filename": "what-if.yaml"}, no_update


PAGE = Page("/whatif", "What-if", shown, register, needs="run")
