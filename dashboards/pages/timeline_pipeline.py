"""The part of the timeline's page that runs with a pipeline have: passes by stage, and bubbles by name."""

from __future__ import annotations

from functools import partial
from typing import Any

from dash import Dash, Input, Output, State, html, no_update
from dash.development.base_component import Component

from dashboards.events import Events
from dashboards.figures.pipeline import bubble_table, height, pipeline
from dashboards.page import PageContext, Query, state
from dashboards.parts import card, graph, table
from dashboards.query import query_of
from dashboards.timeline.opened import opened, view_of
from dashboards.timeline.pipeline import pipeline_of
from dashboards.timeline.view import Pair, View
from twin.description.problems import DescriptionError
from twin.trace.bubbles import PipelineRun

PIPELINES = "timeline-pipelines"
NOTE = (
    "Where the time of a rank goes, in percent of the step. Warm-up: before its first backward pass; drain: after its "
    "last forward pass; imbalance: waiting between these; messages: under way between two passes."
)


def pipelines(context: PageContext, query: Query, pair: Pair, events: tuple[Events, ...], view: View) -> Component:
    """Show the pipeline of each run that has one, of the wanted ranks."""
    return html.Div(_cards(context, query, pair, events, view), id=PIPELINES)


def repipe(context: PageContext, ranks: str | None, search: str) -> Any:
    """Draw the pipelines of other ranks."""
    query = {**query_of(search), "ranks": ranks or ""}
    try:
        pair, events = opened(context, query)
        return _cards(context, query, pair, events, view_of(query, pair))
    except DescriptionError:
        return no_update  # the timeline says what is wrong


def register_pipelines(app: Dash, context: PageContext) -> None:
    """Other ranks give other pictures."""
    app.callback(
        Output(PIPELINES, "children"),
        Input(state("ranks"), "value"),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(repipe, context))


def _cards(context: PageContext, query: Query, pair: Pair, events: tuple[Events, ...], view: View) -> list[Component]:
    entries = [context.catalog.entry(query[key]) for key in ("run", "other") if key in query]
    if [e.kind for e in entries] == ["measured", "predicted"]:
        entries.reverse()
    cards = []
    for number, (entry, of, step) in enumerate(zip(entries, events, pair.steps, strict=True)):
        run = context.catalog.kept(entry, f"pipeline {step.number}", partial(pipeline_of, of, step))
        if run is None:
            continue
        wanted = tuple(stage for stage in run.stages if stage.rank in view.ranks)
        cards.append(_card(number, pair.labels[number], PipelineRun(wanted or run.stages, run.step_seconds)))
    return cards


def _card(number: int, label: str, run: PipelineRun) -> Component:
    figure, words = pipeline(run)
    return card(
        f"Pipeline, {label}",
        words,
        graph(f"pipeline-{number}", figure, label="Passes of the pipeline by stage", height=height(run)),
        html.P(NOTE),
        table(f"pipeline-bubbles-{number}", bubble_table(run), height=min(320, 90 + 42 * (1 + len(run.stages)))),
    )
