"""Compare: any two runs, whatever their grids, strategies and machines, part by part; and their steps one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from dash import html
from dash.development.base_component import Component

from dashboards.anatomy import SLOWEST, Anatomies, Anatomy, anatomies_of, terms_between
from dashboards.catalog import Entry
from dashboards.colours import FIRST, GREY, IDLE, KINDS, SECOND, SLOWEST_DEVICE
from dashboards.figures.waterfall import largest, times_as_long, waterfall
from dashboards.jobs import grid_words, job_in, machine_of
from dashboards.page import Page, PageContext, Query
from dashboards.parts import card, escape, finished, graph, seconds, seconds_axis, table, with_table
from dashboards.run_rows import differences, tokens_per_second
from twin.trace.palette import axis_colour

MAX_ROWS = 60
"""Kinds in a table; more are of no use side by side."""
MAX_KEYS = 20
"""Keys of the job that are named as different."""
OF_PARTS = {"compute": KINDS["compute"], "idle": IDLE, SLOWEST: SLOWEST_DEVICE}
"""Colours of parts that are not of an axis."""
PATTERNS = ("", "/")
UNSEEN = "\u200b"
"""A space without width, which makes two of one name."""


def shown(context: PageContext, query: Query) -> Component:
    """Show what lies between two runs, and the steps of both."""
    entries = [context.catalog.entry(query[key]) for key in ("run", "other")]
    found = [anatomies_of(context.catalog, entry) for entry in entries]
    labels = [entry.label if entries[0].label != entries[1].label else f"{entry.label} " for entry in entries]
    first, second = found[0].middle, found[1].middle
    words = verdict(entries, first, second)
    terms = terms_between(first, second)
    figure = waterfall(first.step_seconds, second.step_seconds, terms, ("first", "second"))
    rows = _rows(labels, first.parts, second.parts)
    changed = ", ".join(differences(entries[0], entries[1], MAX_KEYS)) or "nothing that the job says"
    some = _whose(labels, [one.parts_over for one in found])
    return html.Div(
        [
            card(
                "Which one wins, and by what",
                words,
                with_table(
                    graph("compare-parts", figure, label=words, height=180 + 30 * len(terms)),
                    table("compare-parts-table", rows, height=320),
                ),
                html.P(f"First: {labels[0]}; second: {labels[1]}. They differ in {changed}.{some}"),
            ),
            _side_card("By phase", "Compute of a rank and step, by what the step does.", "phases", labels, found),
            _side_card(
                "By kind",
                "Busy time by kind of work, hidden behind other work or not; of classes of ranks at the pace of the "
                "slowest device.",
                "kinds",
                labels,
                found,
            ),
            _side_card(
                "By stream", "For how long each stream is busy; waits are not counted.", "streams", labels, found
            ),
            _steps_card(labels, found),
        ]
    )


def verdict(entries: Sequence[Entry], first: Anatomy, second: Anatomy) -> str:
    """Say which run is faster, by tokens if their batches differ, and which part has most of it."""
    rates = [tokens_per_second(job_in(e), a.step_seconds) for e, a in zip(entries, (first, second), strict=True)]
    named = [f"{entry.label} ({grid_words(job_in(entry))} on {machine_of(job_in(entry))})" for entry in entries]
    lengths = [first.step_seconds, second.step_seconds]
    difference = lengths[1] - lengths[0]
    said = [
        f"{name}: {seconds(length)} a step" + (f", {rate:,.0f} tokens/s" if rate else "")
        for name, length, rate in zip(named, lengths, rates, strict=True)
    ]
    if rates[0] and rates[1]:
        winner = int(rates[1] > rates[0])
        by = max(rates[0], rates[1]) / min(rates[0], rates[1])
        end = f"{entries[winner].label} wins: {by:.2f} × the tokens per second"
    else:
        end = f"the second is {times_as_long(*lengths)}"
    most = largest(terms_between(first, second), difference)
    sign = "+" if difference > 0 else ""
    why = f"; the largest part of the step's difference of {sign}{seconds(difference)}: {most.label}, " if most else ""
    return f"{said[0]}. {said[1]}. {end}{why}{sign + seconds(most.difference_seconds) if most else ''}."


def _rows(labels: Sequence[str], first: Mapping[str, float], second: Mapping[str, float]) -> list[dict[str, Any]]:
    names = sorted({*first, *second}, key=lambda n: -max(first.get(n, 0.0), second.get(n, 0.0)))
    return [
        {
            "part": name or "(none)",
            f"{labels[0]} (s)": first.get(name),
            f"{labels[1]} (s)": second.get(name),
            "difference (s)": second.get(name, 0.0) - first.get(name, 0.0),
        }
        for name in names[:MAX_ROWS]
    ]


def _whose(labels: Sequence[str], over: Sequence[str]) -> str:
    """Say of which ranks the means of a run are that are not of all."""
    return "".join(f" Of {label}: mean over {of}." for label, of in zip(labels, over, strict=True) if of != "ranks")


def _side_card(title: str, words: str, what: str, labels: Sequence[str], found: Sequence[Anatomies]) -> Component:
    parts = [getattr(one.middle, what) for one in found]
    words += _whose(labels, [one.parts_over if what == "phases" else one.kinds_over for one in found])
    rows = _rows(labels, *parts)
    names = [str(row["part"]) for row in rows]
    figure = go.Figure(
        [
            go.Bar(
                y=[escape(name) for name in names],
                x=[part.get("" if name == "(none)" else name, 0.0) for name in names],
                orientation="h",
                name=escape(label),
                marker={"color": (FIRST, SECOND)[number], "pattern": {"shape": PATTERNS[number]}},
                hovertemplate="%{y}: %{x:.3~s}s<extra></extra>",
            )
            for number, (label, part) in enumerate(zip(labels, parts, strict=True))
        ]
    )
    figure.update_xaxes(**seconds_axis("of a rank and step"), rangemode="tozero")
    figure.update_yaxes(autorange="reversed", automargin=True)
    finished(figure, barmode="group", legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    drawn = graph(f"compare-{what}", figure, label=title, height=140 + 34 * len(names))
    return card(title, words, with_table(drawn, table(f"compare-{what}-table", rows, height=320)))


def steps_of(labels: Sequence[str], found: Sequence[Anatomies]) -> tuple[go.Figure, list[dict[str, Any]]]:
    """Draw every step of both runs as a bar of its parts; also as rows."""
    figure, rows = go.Figure(), list[dict[str, Any]]()
    for label, one in zip(labels, found, strict=True):
        for number, step in one.steps.items():
            rows.append(
                {"run": label, "step": number, "takes (s)": step.step_seconds}
                | {f"{name} (s)": value for name, value in step.parts.items()}
            )
    names = list(dict.fromkeys(name for one in found for step in one.steps.values() for name in step.parts))
    # Plotly has one order of inner names for all outer ones, that of the first run that has them: each run has its own
    places = [[row["run"] for row in rows], [f"{row['step']}{UNSEEN * labels.index(row['run'])}" for row in rows]]
    for name in names:
        axis = name.removeprefix("exposed ")
        colour = OF_PARTS[name] if name in OF_PARTS else axis_colour(axis)
        values = [row.get(f"{name} (s)", 0.0) for row in rows]
        figure.add_bar(x=places, y=values, name=escape(name), marker_color=colour or GREY)
    figure.update_yaxes(**seconds_axis("of a rank"), rangemode="tozero")
    figure.update_xaxes(title="step of the run")
    finished(figure, barmode="stack", legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    return figure, rows


def _steps_card(labels: Sequence[str], found: Sequence[Anatomies]) -> Component:
    figure, rows = steps_of(labels, found)
    words = f"{len(rows)} steps; each bar is as high as its step is long."
    drawn = graph("compare-steps", figure, label=words, height=380)
    return card("Step by step", words, with_table(drawn, table("compare-steps-table", rows, height=320)))


PAGE = Page("/compare", "Compare", shown, needs="run,other", kinds=("predicted", "measured"), runs=2)
