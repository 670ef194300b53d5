"""Verdict: predicted and measured step, and the terms between them, summing exactly."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from dashboards.figures.waterfall import in_order, largest, times_as_long, waterfall
from dashboards.page import Page, PageContext, Query
from dashboards.parts import card, graph, minus, percent, problem, reasons, seconds, table, with_table
from dashboards.query import query_of
from twin.compare.account import AFTER, ALONE, BEFORE, BETWEEN, LATE
from twin.compare.bubbles import BUBBLES, MESSAGE
from twin.compare.compare import OTHER_JOBS, Comparison, compare
from twin.compare.page import facts_of
from twin.compare.stage_rows import op_of, stage_rows, subject_of
from twin.compare.terms import Term
from twin.description.problems import DescriptionError, fail

WATERFALL = "waterfall"
SIDES = ("predicted", "measured")


def compared(context: PageContext, query: Query) -> Comparison:
    """Compare the two runs that an address names. Raises DescriptionError."""
    if "run" not in query or "other" not in query:
        raise fail("run", "choose a predicted and a measured run on the page Runs first")
    first, second = (context.catalog.entry(query[key]) for key in ("run", "other"))
    for entry in (first, second):
        if entry.kind not in ("predicted", "measured"):
            raise fail(entry.label, f"is a {entry.kind}, not a run; choose two runs")
        context.catalog.check_files(entry)
    if (first.kind, second.kind) == ("measured", "predicted"):
        first, second = second, first
    step = query.get("step", "")
    number = int(step) if step.isdecimal() and len(step) < 10 else None
    return context.catalog.kept(
        second, f"compared {first.name} {first.changed} {number}", lambda: compare(first.path, second.path, number)
    )


def shown(context: PageContext, query: Query) -> Component:
    """Show the verdict of two runs."""
    try:
        found = compared(context, query)
    except DescriptionError as error:
        if error.origin != OTHER_JOBS:
            raise
        keys = {key: query[key] for key in ("run", "other")}
        href = f"{context.settings.prefix.rstrip('/')}/compare?{urlencode(keys)}"
        more = dmc.Anchor("Compare, which shows any two runs", href=href, size="sm")
        return problem(f"A verdict is about two runs of one job, and {OTHER_JOBS}: {reasons(error)}", more)
    facts = [dmc.TableTr([dmc.TableTh(what), dmc.TableTd(minus(value))]) for what, value in facts_of(found)]
    worst = [
        {
            "op": op_of(e),
            "part": e.part,
            "predicted (s)": e.predicted_seconds,
            "measured (s)": e.measured_seconds,
            "difference (s)": e.measured_seconds - e.predicted_seconds,
        }
        for e in found.worst
    ]
    return html.Div(
        [
            *(dmc.Alert(text, color="yellow", variant="light", mb="xs") for text in found.warnings),
            _waterfall_card(found),
            *_stages(found),
            dmc.SimpleGrid(
                [
                    card("What was compared", f"{found.job}, {found.grid}.", dmc.Table(dmc.TableTbody(facts))),
                    card(
                        "By phase",
                        "The same difference, by what the step does.",
                        table("phases", [term_row(t) for t in found.phases], height=300),
                    ),
                ],
                cols={"base": 1, "lg": 2},
            ),
            card(
                "Ops that are furthest off",
                "Mean over ranks, predicted against the median of the measured steps.",
                table("worst", worst),
            ),
            dcc.Location(id="verdict-leads", refresh="callback-nav"),
        ]
    )


def _stages(found: Comparison) -> list[Component]:
    """The steps by stage of a pipeline, where there is one."""
    rows = [
        {"stage": row.name, "decides the step": "critical" if row.critical else ""}
        | {f"{title}, {when} (s)": a for title, *both in row.parts for when, a in zip(SIDES, both, strict=True)}
        for row in stage_rows(found)
    ]
    if not rows:
        return []
    words = (
        "Mean over the ranks of each stage; what is exposed. The critical stage has the least bubble: "
        "the step is no shorter than its own time."
    )
    return [card("By stage", words, table("stages", rows, height=min(420, 90 + 42 * len(rows))))]


def _waterfall_card(found: Comparison) -> Component:
    """The terms from one step to the other, and the choice of the measured step."""
    names = names_of(found)
    summary = summary_of(found)
    figure = waterfall(found.predicted_seconds, found.measured_seconds, found.terms, names)
    return card(
        "From prediction to measurement",
        summary,
        with_table(
            graph(WATERFALL, figure, label=summary, height=140 + 30 * len(found.terms)),
            table(
                "terms",
                [term_row(t) | {"key": t.name} for t in in_order(found.terms)],
                [{"field": name, "headerName": name} for name in term_row(found.terms[0])] if found.terms else [],
                getRowId="params.data.key",
            ),
        ),
        dmc.Text(
            "Choose a bar, or a row of the table, to see its ops on the timeline. The terms add up exactly.", size="sm"
        ),
    )


def summary_of(found: Comparison) -> str:
    """Say in a sentence how far apart the steps are, and which term has most of that."""
    names = names_of(found)
    error = found.predicted_seconds / found.measured_seconds - 1.0 if found.measured_seconds else 0.0
    difference = found.measured_seconds - found.predicted_seconds
    most = largest(found.terms, difference)
    why = (
        f" The largest part: {most.label}, {'+' if difference > 0 else ''}{seconds(most.difference_seconds)}."
        if most
        else ""
    )
    who = f" Terms are the {subject_of(found)}, which decides the step." if found.pipeline else ""
    off = f" The prediction is {percent(100 * error)} off." if names == SIDES else ""
    return (
        f"{names[0].capitalize()} {seconds(found.predicted_seconds)}, {names[1]} {seconds(found.measured_seconds)}: "
        f"{times_as_long(found.predicted_seconds, found.measured_seconds)}.{off}{why}{who}"
    )


def names_of(found: Comparison) -> tuple[str, str]:
    """What the two runs are called."""
    return ("first", "second") if found.kinds[0] == found.kinds[1] else ("predicted", "measured")


def term_row(term: Term) -> dict[str, Any]:
    """One term as a row, seconds as `fourfold compare --json` has them."""
    return {
        "term": term.label,
        "predicted (s)": term.predicted_seconds,
        "measured (s)": term.measured_seconds,
        "difference (s)": term.difference_seconds,
        "note": "unexplained" if term.unexplained else "below the clocks' uncertainty" if term.below_clocks else "",
    }


def filter_of(term: str) -> str:
    """What the timeline shows for a term: a kind of op, an axis, what lies between ops, or everything.

    >>> filter_of("transfer_y"), filter_of("gemm"), filter_of("between"), filter_of("drain_pipeline")
    ('y', 'compute', 'gap', 'pipeline')
    """
    if term.startswith(("skew_", "transfer_", *(f"{kind}_" for kind in (*BUBBLES, MESSAGE)))):
        return term.partition("_")[2]
    if term in (BEFORE, BETWEEN, AFTER):
        return "gap"
    return {LATE: "wait", ALONE: "", "predicted": "", "measured": ""}.get(term, "compute")


def register(app: Dash, context: PageContext) -> None:
    """A click on a bar leads to the timeline; another step is another address."""
    prefix = context.settings.prefix.rstrip("/")

    @app.callback(
        Output("verdict-leads", "href"),
        Input(WATERFALL, "clickData"),
        Input("terms", "cellClicked"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def lead(clicked: Any, row: Any, search: str | None) -> Any:
        term = ""
        if ctx.triggered_id == WATERFALL and clicked:
            term = str(clicked["points"][0].get("customdata", ""))
        elif isinstance(row, dict):
            term = str(row.get("rowId") or "")
        if not term:
            return no_update
        query = {k: v for k, v in query_of(search).items() if k in ("run", "other", "step")}
        if wanted := filter_of(term):
            query["show"] = wanted
        return f"{prefix}/timeline?{urlencode(query)}"


PAGE = Page("/verdict", "Verdict", shown, register, needs="run,other,step", kinds=("predicted", "measured"), runs=2)
