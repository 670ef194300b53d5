"""Trust: how good the model is, op by op and over all runs that were both predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import html
from dash.development.base_component import Component

from dashboards.catalog import Catalog, Entry
from dashboards.events import Floats, events_of, step_seconds
from dashboards.figures.parity import DOTTED, errors_by_size, parity
from dashboards.jobs import elsewhere, grid_words, job_in, machine_of, model_of, nearest_first, work_key
from dashboards.page import Page, PageContext, Query
from dashboards.pages.verdict import compared
from dashboards.pairs import Pairs, pairs_of
from dashboards.parts import card, graph, minus, table, with_table
from dashboards.standing import weights_of
from twin.compare.errors import ErrorGroup
from twin.compare.jobs import work_of

LINES = f"On the line both are equal; dotted, one is {DOTTED:g} times the other."
MIN_RANKED, MAX_GROUPS = 3, 3
"""Runs of one work of which an order says anything, and groups of which it is told above the figure."""


def shown(context: PageContext, query: Query) -> Component:
    """Show the ops of two runs, if an address names two, and all pairs of runs."""
    parts = [_ops(context, query)] if {"run", "other"} <= set(query) else []
    return html.Div([*parts, _runs(context)])


def _ops(context: PageContext, query: Query) -> Component:
    found = compared(context, query)  # says what is wrong with the pair, if anything
    first, second = (context.catalog.entry(query[key]) for key in ("run", "other"))
    if (first.kind, second.kind) == ("measured", "predicted"):
        first, second = second, first
    pairs = context.catalog.kept(second, f"pairs {first.name} {first.changed}", lambda: _pairs(context, first, second))
    good = (pairs.first_ns > 0) & (pairs.second_ns > 0)
    error = pairs.first_ns / np.where(good, pairs.second_ns, 1.0) - 1.0
    summary = _within(np.abs(error[good]))
    return html.Div(
        [
            card(
                "Op by op",
                f"{summary} {LINES}",
                with_table(
                    graph(
                        "parity",
                        parity(pairs.first_ns / 1e9, pairs.second_ns / 1e9, pairs.work, pairs.op),
                        label=summary,
                        height=520,
                    ),
                    table("pairs", _rows(pairs), height=460),
                ),
            ),
            card(
                "Error against size",
                "Where the model is off: on small ops, on large ones, or on one kind.",
                graph(
                    "errors",
                    errors_by_size(pairs.size, np.where(good, error, np.nan), pairs.work, pairs.op),
                    label="Relative error of ops against their size",
                    height=420,
                ),
            ),
            card(
                "Errors by kind, axis and phase",
                "Single ops on single ranks; bias is of their totals.",
                table("groups", [_group_row(group) for group in found.errors], height=420),
            ),
        ]
    )


def _within(off: Floats) -> str:
    """Say how far ops are off, as shares of their measured times."""
    if not len(off):
        return "No op took any time in both."
    return (
        f"{len(off):,} ops; half of them are within {100 * np.median(off):,.0f} % of the measured time, 90 % within "
        f"{100 * np.quantile(off, 0.9):,.0f} %."
    )


def _group_row(group: ErrorGroup) -> dict[str, Any]:
    return {
        "part": group.part,
        "by": group.by,
        "name": group.name,
        "ops": group.ops,
        "predicted (s)": group.predicted_seconds,
        "measured (s)": group.measured_seconds,
        "median error (%)": _percent(group.median_error),
        "90 % below (%)": _percent(group.p90_error),
        "bias (%)": _percent(group.bias),
    }


def _pairs(context: PageContext, first: Entry, second: Entry) -> Pairs:
    roles = work_of(first.head, first.label).roles
    ours, theirs = events_of(context.catalog, first), events_of(context.catalog, second)
    weights = (weights_of(context.catalog, first, ours), weights_of(context.catalog, second, theirs))
    return pairs_of(ours, theirs, roles, weights)


def _rows(pairs: Pairs) -> list[dict[str, Any]]:
    return [
        {"op": op, "kind": work, "axis": axis, "predicted (s)": a / 1e9, "measured (s)": b / 1e9}
        for op, work, axis, a, b in zip(pairs.op, pairs.work, pairs.axis, pairs.first_ns, pairs.second_ns, strict=True)
    ]


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 1)


def _runs(context: PageContext) -> Component:
    """Every job under the root that was both predicted and measured."""
    runs = both_ways(context.catalog)
    if not runs:
        return card("Run by run", "No job here was both predicted and measured.")
    groups: dict[str, list[Both]] = {}
    for one in runs:
        groups.setdefault(one.work, []).append(one)
    largest = sorted(groups.items(), key=lambda item: -len(item[1]))
    summary = f"{len(runs)} {'run was' if len(runs) == 1 else 'runs were'} both predicted and measured."
    several = [in_order(work, each) for work, each in largest if len(each) >= MIN_RANKED]
    summary = " ".join([summary, *several[:MAX_GROUPS]])
    rows = [row for work, each in largest for row in _places_of(work, each)]
    predicted, measured = (np.array([getattr(one, way) for one in runs]) for way in ("predicted", "measured"))
    figure = parity(predicted, measured, ["jobs"] * len(runs), [one.name for one in runs])
    return card(
        "Run by run",
        f"{summary} {LINES}",
        with_table(graph("runs-parity", figure, label=summary, height=420), table("runs-table", rows)),
    )


def in_order(work: str, runs: Sequence[Both]) -> str:
    """Say whether runs that do the same work come in the order that was predicted."""
    predicted, measured = (np.array([getattr(one, way) for one in runs]) for way in ("predicted", "measured"))
    best = int(_places(measured)[int(np.argmin(predicted))]) + 1
    correlation = minus(f"{spearman(predicted, measured):.3f}")
    return (
        f"Of the {len(runs)} of {work}, rank correlation {correlation}; the best predicted is number {best} of the "
        "measured."
    )


def _places_of(work: str, runs: Sequence[Both]) -> list[dict[str, Any]]:
    """Rows of the runs that do one work, with their places among them."""
    predicted, measured = (_places(np.array([getattr(one, way) for one in runs])) for way in ("predicted", "measured"))
    return [
        {
            "job": one.name,
            "predicted (s)": one.predicted,
            "measured (s)": one.measured,
            "error (%)": round(100 * (one.predicted / one.measured - 1), 1),
            "same work": work,
            "predicted place": int(a) + 1,
            "measured place": int(b) + 1,
            "of": len(runs),
        }
        for one, a, b in zip(runs, predicted, measured, strict=True)
    ]


@dataclass(frozen=True)
class Both:
    """Steps of a job that was predicted and measured, in seconds."""

    name: str
    """Job and grid."""
    work: str
    """Model, machine, ranks and batch: only steps of which these are equal have an order."""
    predicted: float
    measured: float


def both_ways(catalog: Catalog) -> list[Both]:
    """Return the jobs with both: the newest measurement, and its nearest prediction."""
    alike: dict[tuple[str, ...], dict[str, list[Entry]]] = {}
    for entry in catalog.entries():
        if (job := job_in(entry)) and entry.kind in ("predicted", "measured") and step_seconds(catalog, entry):
            key = f"{job.get('name')}, {grid_words(job)}", *work_key(entry)
            alike.setdefault(key, {}).setdefault(entry.kind, []).append(entry)
    found = []
    for (name, *_), ways in alike.items():
        measured = max(ways.get("measured", []), key=lambda entry: entry.changed, default=None)
        ordered = nearest_first(measured, ways.get("predicted", [])) if measured else []
        if measured and ordered:
            steps = [step_seconds(catalog, entry) or 0.0 for entry in (ordered[0], measured)]
            found.append(Both(name, _work(ordered[0], measured), *steps))
    return found


def _work(predicted: Entry, measured: Entry) -> str:
    """Say what a job works on; unnamed models by their shapes."""
    job, apart = job_in(measured), elsewhere(predicted, measured)
    model, batch = job.get("model"), job.get("batch")
    shape = f", {model.get('sequence')} tokens" if isinstance(model, Mapping) else ""
    sequences = batch.get("sequences") if isinstance(batch, Mapping) else None
    words = f"{model_of(job)}{shape}, {sequences} sequences on {job.get('ranks')} ranks of {machine_of(job)}"
    return f"{words} ({apart})" if apart else words


def spearman(first: Floats, second: Floats) -> float:
    """Rank correlation.

    >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0])), 3)
    0.5
    """
    return float(np.corrcoef(_places(first), _places(second))[0, 1])


def _places(values: Floats) -> Floats:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)


PAGE = Page("/trust", "Trust", shown, needs="run,other", kinds=("predicted", "measured"))
