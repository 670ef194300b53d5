"""Verdict: predicted and measured step, and the terms between them, summing exactly."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from dashboards.figures.waterfall import waterfall
from dashboards.page import Page, PageContext, Query, state
from dashboards.parts import aria, card, graph, seconds, table, with_table
from dashboards.query import query_of
from twin.compare.bubbles import BUBBLES, MESSAGE
from twin.compare.compare import Comparison, compare
from twin.compare.page import facts_of
from twin.compare.stage_rows import op_of, stage_rows, subject_of
from twin.compare.terms import Term
from twin.description.problems import fail

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
    found = compared(context, query)
    facts = [dmc.TableTr([dmc.TableTh(what), dmc.TableTd(value)]) for what, value in facts_of(found)]
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
    names = ("first", "second") if found.kinds[0] == found.kinds[1] else ("predicted", "measured")
    summary = summary_of(found)
    figure = waterfall(found.predicted_seconds, found.measured_seconds, found.terms, names)
    steps = dmc.Select(
        id=state("step"),
        data=[str(n) for n in found.steps],
        value=str(found.step),
        w=120,
        allowDeselect=False,
        **aria("measured step"),
    )
    return card(
        "From prediction to measurement",
        summary,
        dmc.Group([dmc.Text("measured step", size="sm"), steps], mb="xs"),
        with_table(
            graph(WATERFALL, figure, label=summary, height=140 + 30 * len(found.terms)),
            table("terms", [term_row(t) for t in found.terms]),
        ),
        dmc.Text("Choose a bar to see its ops on the timeline. The terms add up to the difference exactly.", size="sm"),
    )


def summary_of(found: Comparison) -> str:
    """Say in a sentence how far the prediction is off, and which term most of it is."""
    error = found.predicted_seconds / found.measured_seconds - 1.0 if found.measured_seconds else 0.0
    largest = max(found.terms, key=lambda t: abs(t.difference_seconds), default=None)
    most = f" Most of it: {largest.label}, {seconds(largest.difference_seconds)}." if largest else ""
    who = f" Terms are the {subject_of(found)}, which decides the step." if found.pipeline else ""
    return (
        f"Predicted {seconds(found.predicted_seconds)}, measured {seconds(found.measured_seconds)}: "
        f"{100 * error:+.1f} %.{most}{who}"
    )


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
    """What the timeline shows for a term: a kind of op, an axis, or everything.

    >>> filter_of("transfer_y"), filter_of("gemm"), filter_of("between"), filter_of("drain_pipeline")
    ('y', 'compute', '', 'pipeline')
    """
    if term.startswith(("skew_", "transfer_", *(f"{kind}_" for kind in (*BUBBLES, MESSAGE)))):
        return term.partition("_")[2]
    return "" if term in ("before", "between", "late", "after", "alone", "predicted", "measured") else "compute"


def register(app: Dash, context: PageContext) -> None:
    """A click on a bar leads to the timeline; another step is another address."""
    prefix = context.settings.prefix.rstrip("/")

    @app.callback(
        Output("verdict-leads", "href"),
        Input(WATERFALL, "clickData"),
        Input(state("step"), "value"),
        State("address", "search"),
        State("verdict-leads", "pathname"),
        prevent_initial_call=True,
    )
    def lead(clicked: Any, step: str | None, search: str | None, path: str | None) -> Any:
        query = query_of(search)
        del path
        if clicked:
            term = str(clicked["points"][0].get("customdata", ""))
            query = {k: v for k, v in query.items() if k in ("run", "other")} | {"step": step or ""}
            if wanted := filter_of(term):
                query["show"] = wanted
            return f"{prefix}/timeline?{urlencode(query)}"
        if step and step != query.get("step"):
            return f"{prefix}/verdict?{urlencode({**query, 'step': step})}"
        return no_update


PAGE = Page("/verdict", "Verdict", shown, register, needs="run,other")
