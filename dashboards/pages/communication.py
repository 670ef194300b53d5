"""Communication: each collective's bytes, time, skew, and bus bandwidth against size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from dashboards.catalog import Entry
from dashboards.collectives import Collectives, link_loads, predicted_curve, read_collectives
from dashboards.figures.bandwidth import MAX_BARS, bandwidth, skew
from dashboards.page import Page, PageContext, Query
from dashboards.parts import card, graph, seconds, table, with_table
from twin.description.problems import fail

MIN_AHEAD = 0.01
"""Of the transfers: between asking and waiting, a measured rank always has some microseconds."""


def shown(context: PageContext, query: Query) -> Component:
    """Show the collectives of one run or of two."""
    if "run" not in query:
        raise fail("run", "choose one run, or two, on the page Runs first")
    entries = [context.catalog.entry(query[key]) for key in ("run", "other") if key in query]
    found = [read_collectives(context.catalog, entry) for entry in entries]
    labels = [f"{entry.label} ({entry.kind})" for entry in entries]
    rows = [row for entry, label, one in zip(entries, labels, found, strict=True) for row in _rows(label, entry, one)]
    total = "; ".join(_total(label, one) for label, one in zip(labels, found, strict=True))
    curve = predicted_curve(entries[0]) if entries else []
    figure = bandwidth(list(zip(labels, found, strict=True)), curve)
    return html.Div(
        [
            card(
                "Bus bandwidth against size",
                "One point for each kind of collective: the median transfer. The lines are what the machine's library "
                "is modelled to reach alone on this placement.",
                with_table(
                    graph("bandwidth", figure, label="Bus bandwidth against size of collectives", height=520),
                    table("bandwidth-table", rows, height=420),
                ),
            ),
            card(
                "Transfer, arrival skew and queueing",
                total + ". " + _drawn(found),
                graph("skew", skew(list(zip(labels, found, strict=True))), label=total, height=420),
            ),
            _links(entries),
        ]
    )


def _rows(label: str, entry: Entry, found: Collectives) -> list[dict[str, Any]]:
    del entry
    return [
        {
            "run": label,
            "collective": one.name,
            "axis": one.axis,
            "members": "–" if one.members is None else one.members,
            "stream": one.stream,
            "size (B)": one.bytes,
            "times a rank and step": round(one.count, 2),
            "transfer, median (s)": one.transfer_ns / 1e9,
            "transfer, 90 % (s)": one.transfer_p90_ns / 1e9,
            "skew, median (s)": one.skew_ns / 1e9,
            "queue, median (s)": one.queue_ns / 1e9,
            "asked ahead, median (s)": one.ahead_ns / 1e9,
            "bus bandwidth (B/s)": one.bus_bytes_per_second or "–",
        }
        for one in found.rows
    ]


def _links(entries: Sequence[Entry]) -> Component:
    """Say how much each kind of link carries, as the twin counts it."""
    rows = link_loads(entries[0])
    if not rows:
        return dmc.Text("")
    busiest = max(rows, key=lambda row: row["share of the step (%)"])
    summary = (
        f"What a step moves over each kind of link, as the twin counts it for {entries[0].label}; the busiest, "
        f"{busiest['link']}, is at work {busiest['share of the step (%)']:.1f} % of the step if at its full rate."
    )
    return card("Load of links", summary, table("links", rows, height=260))


def _drawn(found: Sequence[Collectives]) -> str:
    """Say how many names the figure leaves out."""
    names = len({row.name for one in found for row in one.rows})
    return f"Drawn are the {MAX_BARS} of {names} names that take longest." if names > MAX_BARS else ""


def _total(label: str, found: Collectives) -> str:
    transfer, waiting = found.transfer_seconds_per_rank, found.skew_seconds_per_rank
    whose = "" if found.over == "ranks" else f", mean over {found.over}"
    said = f"{label}{whose}: a rank and step has {seconds(transfer)} of transfers"
    said += f", and stands still for {seconds(waiting)} until last members come"
    if found.peers_seconds is not None:
        said += f" ({seconds(found.peers_seconds)} as a mean over all ranks)"
    if found.queued_seconds_per_rank:
        queued = seconds(found.queued_seconds_per_rank)
        said += f"; they queue for {queued} behind what the rank began before on the same stream"
    if found.ahead_seconds_per_rank >= MIN_AHEAD * transfer:
        ahead = seconds(found.ahead_seconds_per_rank)
        said += (
            f"; what it asks for ahead, such as receives, waits {ahead} for last members while the rank does other work"
        )
    return said


PAGE = Page("/communication", "Communication", shown, needs="run,other", kinds=("predicted", "measured"), runs=1)
