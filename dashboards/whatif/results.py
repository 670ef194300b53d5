"""The results of a what-if: what changed, figures of both jobs, the same ranks before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from dash import html
from dash.development.base_component import Component

from dashboards.events import columns
from dashboards.figures.change import NAMES, change, lengths, terms
from dashboards.figures.timeline import timeline
from dashboards.page import PageContext, Query
from dashboards.parts import NUMBER, aria, card, finished, graph, table, with_table
from dashboards.timeline.lanes import lanes
from dashboards.timeline.step import step_of
from dashboards.timeline.view import View, paired
from dashboards.whatif.pool import Answer

TIMELINE, CHANGE, PARTS, FIGURES = ("whatif-timeline", "whatif-change", "whatif-parts", "whatif-figures")

EMPTY = finished(go.Figure(), xaxis={"visible": False}, yaxis={"visible": False})
"""Nothing, without axes of nothing."""
FIGURE = {"valueFormatter": {"function": "quantity(params.value, params.data.figure)"}}
"""The look of a figure whose unit stands behind its name: a file has that unit, a cell one that suits its size."""


def results(context: PageContext, query: Query) -> Component:
    """Show where the answer will stand; until it comes, the step as the run was predicted."""
    return html.Div(
        [
            html.Div(id="whatif-status", role="status", **aria("What the simulation says")),
            html.Div(id="whatif-kept-card"),
            card(
                "Step",
                "From the step as it is to the step as it would be; the parts add up.",
                with_table(
                    graph(CHANGE, _first(context, query), label="Parts of the step, before and after", height=380),
                    table(PARTS, [], headed("part", *_seconds_columns())),
                ),
            ),
            card("Figures", "Both jobs, side by side.", table(FIGURES, [], _figures_columns(), height=330)),
            card(
                "Timeline",
                html.Span("The same ranks before and after.", id="whatif-words"),
                graph(TIMELINE, EMPTY, label="Timeline of a few ranks, before and after", height=520),
            ),
        ]
    )


def _first(context: PageContext, query: Query) -> go.Figure:
    """Until the first answer, the step as the run says it was predicted, if it says so."""
    head = context.catalog.entry(query["run"]).head if query.get("run") else {}
    figures: Any = head.get("figures")
    try:
        return change(figures, figures)
    except (KeyError, TypeError, ValueError, AttributeError):
        return finished(go.Figure())


def _seconds_columns() -> list[str]:
    return [f"{name} (s)" for name in (*NAMES, "difference")]


def _figures_columns() -> list[dict[str, Any]]:
    name, *both, change = headed("figure", *NAMES, "change (%)")
    plain = {"valueFormatter": {"function": "unitless(params.value)"}}
    return [name | plain, *(column | FIGURE for column in both), change]


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
            "memory of a rank (B)": of["memory"]["per_rank_bytes"],
            "energy of a step, devices (J)": of["energy_joules"],
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


def drawn(answer: Answer, window: tuple[float, float] | None) -> tuple[go.Figure, str]:
    """Draw the same ranks of both jobs on one axis, and say what is seen."""
    if not answer.tables:  # nor may the picture of another answer stay
        ops = max(answer.old["ops"], answer.new["ops"])
        many = f"A rank's step of {ops:,} ops is too long to be drawn here op by op: the bars are both steps."
        return lengths(answer.old, answer.new), f"{many} Download the job and simulate it with --out to see its ops."
    events = tuple(columns(one, predicted=True) for one in answer.tables)
    pair = paired(NAMES, tuple(step_of(one, None) for one in events))
    view = View()
    figure, words = timeline(pair, events, lanes(pair, view), view, window)
    figure.update_layout(uirevision=f"{window}")
    return figure, f"{NAMES[0].capitalize()} above {NAMES[1]}. {words}"
