"""Report: one self-contained HTML file of a run or of two, to be kept, printed or sent."""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import Any

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component
from plotly.offline import get_plotlyjs

from dashboards.collectives import read_collectives
from dashboards.events import events_of
from dashboards.figures.bandwidth import skew
from dashboards.figures.parity import parity
from dashboards.figures.timeline import height, timeline
from dashboards.figures.waterfall import waterfall
from dashboards.members import job_of
from dashboards.page import Page, PageContext, Query, state
from dashboards.pages.memory import rows_of, stacked
from dashboards.pages.timeline_open import laid_out
from dashboards.pages.verdict import compared, term_row
from dashboards.pairs import pairs_of
from dashboards.parts import aria, card, minus, percent, problem, seconds
from dashboards.query import query_of
from dashboards.report_front import Front, front_of, written
from dashboards.standing import weights_of
from dashboards.timeline.opened import opened, view_of
from twin import __version__
from twin.compare.jobs import work_of
from twin.compare.page import facts_of
from twin.cost.memory import memory_use
from twin.description.problems import DescriptionError, fail
from twin.description.units import format_memory

SECTIONS = {
    "verdict": "Verdict",
    "timeline": "Timeline",
    "communication": "Communication",
    "memory": "Memory",
    "trust": "Op by op",
}
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a;
background: #fff } table { border-collapse: collapse; margin: .5rem 0 1rem; font-size: 13px }
td, th { padding: .15rem .7rem .15rem 0; text-align: left; border-bottom: 1px solid #ddd; vertical-align: top }
h2 { margin-top: 2rem } .note { color: #555 } .conclusion { font-size: 17px; max-width: 75ch }
@page { size: A4 landscape; margin: 12mm }
@media print { body { margin: 0; max-width: none } h2 { break-before: page } h2:first-of-type { break-before: auto }
table, .plotly-graph-div { break-inside: avoid } }
"""
MAX_ROWS = 40
"""Of a table on paper."""
CONFIG = {"displaylogo": False, "showSendToCloud": False, "displayModeBar": False}
Section = tuple[str, str, list[go.Figure], list[dict[str, Any]]]
"""Heading, one sentence, figures, rows of a table."""


def shown(context: PageContext, query: Query) -> Component:
    """Offer the sections that the chosen runs allow."""
    if "run" not in query:
        raise fail("run", "choose one run, or two, on the page Runs first")
    names = [context.catalog.entry(query[key]).label for key in ("run", "other") if key in query]
    possible = [key for key in SECTIONS if "other" in query or key not in ("verdict", "trust")]
    wanted = [key for key in query.get("sections", "").split(",") if key in possible] or possible
    return card(
        "One file",
        f"A page about {' and '.join(names)} that needs no server and no network: about 5 MB, most of it Plotly. "
        "Print it from the browser for a PDF.",
        dmc.Group(
            [
                dmc.TextInput(
                    id=state("title"), label="name", value=query.get("title", ""), placeholder=names[0], w=360
                ),
                dmc.NumberInput(
                    id=state("price"),
                    label="price of a device hour",
                    description=html.Span(
                        "in the currency of your allocation; empty: no cost", style={"color": "var(--quiet)"}
                    ),
                    value=query.get("price", ""),
                    min=0,
                    w=260,
                ),
            ],
            align="end",
        ),
        dmc.CheckboxGroup(
            id=state("sections"),
            value=wanted,
            label="Sections",
            children=dmc.Group([dmc.Checkbox(label=SECTIONS[key], value=key) for key in possible], my="xs"),
        ),
        dmc.Button("Download the report", id="report-make", mt="sm"),
        dcc.Download(id="report-file"),
        html.Div(id="report-words", role="status", **aria("Result")),
    )


def sections_of(context: PageContext, query: Query, wanted: list[str]) -> list[Section]:
    """Make the wanted sections. Raises DescriptionError if one cannot be made."""
    makers = {
        "verdict": _verdict,
        "timeline": _timeline,
        "communication": _communication,
        "memory": _memory,
        "trust": _trust,
    }
    return [makers[key](context, query) for key in SECTIONS if key in wanted]


def _verdict(context: PageContext, query: Query) -> Section:
    found = compared(context, query)
    error = found.predicted_seconds / found.measured_seconds - 1.0 if found.measured_seconds else 0.0
    words = (
        f"Predicted {seconds(found.predicted_seconds)}, measured {seconds(found.measured_seconds)}: "
        f"{percent(100 * error)}. The terms add up to the difference exactly. " + " ".join(found.warnings)
    )
    figure = waterfall(found.predicted_seconds, found.measured_seconds, found.terms)
    figure.update_layout(height=140 + 30 * len(found.terms))
    facts = [{"what": what, "value": minus(value)} for what, value in facts_of(found)]
    return (
        "Verdict",
        words,
        [figure],
        facts + [{"what": r["term"], "value": seconds(r["difference (s)"])} for r in map(term_row, found.terms)],
    )


def _timeline(context: PageContext, query: Query) -> Section:
    pair, events = opened(context, query)
    view = view_of(query, pair)
    laid = laid_out(context, query, pair, view)
    figure, words = timeline(pair, events, laid, view, None, spelled=True)
    figure.update_layout(height=height(laid))
    return "Timeline", words, [figure], []


def _communication(context: PageContext, query: Query) -> Section:
    found = []
    for key in ("run", "other"):
        if key in query:
            entry = context.catalog.entry(query[key])
            found.append((entry.kind or "", read_collectives(context.catalog, entry)))
    rows = [
        {
            "run": label,
            "collective": r.name,
            "axis": r.axis,
            "members": "–" if r.members is None else r.members,
            "size": format_memory(r.bytes),
            "median transfer": seconds(r.transfer_ns / 1e9),
            "median skew": seconds(r.skew_ns / 1e9),
            "median queue": seconds(r.queue_ns / 1e9),
        }
        for label, one in found
        for r in one.rows[:MAX_ROWS]
    ]
    some = "".join(f" Of the {label} run: mean over {one.over}." for label, one in found if one.over != "ranks")
    words = f"Seconds of a rank and step that collectives take, by name.{some}"
    return ("Communication", words, [skew(found)], rows)


def _memory(context: PageContext, query: Query) -> Section:
    entry = context.catalog.entry(query["run"])
    job = job_of(entry)
    if job is None or job.grid == "auto" or job.batch.micro_sequences == "auto":
        return "Memory", "The job is not one that the twin knows; memory cannot be counted.", [], []
    use = memory_use(job)
    words = (
        f"{format_memory(use.per_rank_bytes)} of {format_memory(use.capacity_bytes)} per rank, as the twin counts it."
    )
    return "Memory", words, [stacked([(entry.label, use)])], [_written(rows_of([(entry.label, use)])[0])]


def _written(cells: dict[str, Any]) -> dict[str, Any]:
    """Write sizes with a unit each."""
    return {
        name.removesuffix(" (B)"): format_memory(value) if name.endswith(" (B)") else value
        for name, value in cells.items()
    }


def _trust(context: PageContext, query: Query) -> Section:
    pair = [context.catalog.entry(query[key]) for key in ("run", "other")]
    if pair[0].kind == "measured" and pair[1].kind == "predicted":
        pair.reverse()
    first, second = (events_of(context.catalog, entry) for entry in pair)
    weights = (weights_of(context.catalog, pair[0], first), weights_of(context.catalog, pair[1], second))
    pairs = pairs_of(first, second, work_of(pair[0].head, pair[0].label).roles, weights)
    figure = parity(pairs.first_ns / 1e9, pairs.second_ns / 1e9, pairs.work, pairs.op)
    return ("Op by op", f"{len(pairs.op)} ops that both runs have, medians over ranks and steps.", [figure], [])


def page(title: str, sections: list[Section], front: Front | None = None) -> str:
    """Write one HTML page that holds all it needs. Everything that comes from runs is escaped."""
    parts = [] if front is None else [written(front)]
    for number, (heading, words, figures, rows) in enumerate(sections):
        parts.append(f"<h2>{escape(heading)}</h2><p>{escape(words)}</p>")
        for place, figure in enumerate(figures):
            figure.update_layout(width=1060, height=max(380, figure.layout.height or 0))
            parts.append(
                figure.to_html(
                    full_html=False, include_plotlyjs=False, div_id=f"f{number}-{place}", config=dict(CONFIG)
                )
            )
        if rows:
            head = "".join(f"<th>{escape(str(key))}</th>" for key in rows[0])
            body = "".join(
                "<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in one.values()) + "</tr>" for one in rows
            )
            parts.append(f"<table><tr>{head}</tr>{body}</table>")
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style><script>{get_plotlyjs()}</script></head><body><h1>{escape(title)}</h1>"
        f'<p class="note">Fourfold {escape(__version__)}, {made}</p>{"".join(parts)}</body></html>'
    )


def register(app: Dash, context: PageContext) -> None:
    """The button makes the file."""

    @app.callback(
        Output("report-file", "data"),
        Output("report-words", "children"),
        Input("report-make", "n_clicks"),
        State(state("sections"), "value"),
        State(state("title"), "value"),
        State(state("price"), "value"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def make(clicks: int | None, wanted: list[str] | None, name: Any, price: Any, search: str | None) -> Any:
        if not clicks:
            return no_update, no_update
        query = query_of(search)
        try:
            sections = sections_of(context, query, wanted or [])
            front = front_of(context, query, str(name or ""), price)
            title = front.name
        except DescriptionError as error:
            return no_update, problem(error)
        text = page(title, sections, front)
        return {"content": text, "filename": "fourfold-report.html", "type": "text/html"}, f"{len(sections)} sections."


PAGE = Page("/report", "Report", shown, register, needs="run,other,step", kinds=("predicted", "measured"), runs=1)
