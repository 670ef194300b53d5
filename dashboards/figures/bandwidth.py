"""Bus bandwidth against size, and transfer beside skew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from dashboards.collectives import Collectives
from dashboards.parts import escape, finished, seconds_axis
from twin.trace.palette import axis_colour

SYMBOLS = ("circle", "diamond-open")
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
"""Above the figure: beside it, names of two runs would take half of a small window."""
DASHES = ("solid", "dash", "dot", "dashdot")
"""Of an axis' lines one after the other, as all have its colour."""
MAX_BARS = 12
"""The groups that move most bytes; of more the names would overlap."""


def bandwidth(found: Sequence[tuple[str, Collectives]], curves: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Points for what runs reached, lines for what the library is modelled to reach; log-log."""
    figure = go.Figure()
    drawn: Counter[str] = Counter()
    for curve in curves:
        dash = DASHES[drawn[curve["axis"]] % len(DASHES)]
        drawn[curve["axis"]] += 1
        figure.add_trace(
            go.Scatter(
                x=curve["bytes"],
                y=list(curve["bus"]),
                mode="lines",
                line={"color": axis_colour(curve["axis"]), "width": 1.5, "dash": dash},
                name=f"model: {curve['name']}",
                text=curve["algorithm"],
                hovertemplate="%{x:.3s}B  %{y:.3s}B/s<br>%{text}<extra></extra>",
            )
        )
    for (label, one), symbol in zip(found, SYMBOLS, strict=False):
        for axis in dict.fromkeys(row.axis for row in one.rows):
            rows = [r for r in one.rows if r.axis == axis and r.bus_bytes_per_second]
            if not rows:  # copies and updates of one rank use no bus, and an entry of the legend would promise points
                continue
            figure.add_trace(
                go.Scatter(
                    x=[row.bytes for row in rows],
                    y=[row.bus_bytes_per_second for row in rows],
                    mode="markers",
                    marker={"color": axis_colour(axis), "symbol": symbol, "size": 9},
                    name=escape(f"{label}, {axis}"),
                    text=[escape(f"{row.name}, {row.members} members") for row in rows],
                    hovertemplate="%{text}<br>%{x:.3s}B  %{y:.3s}B/s<extra></extra>",
                )
            )
    figure.update_xaxes(type="log", title="bytes", dtick=1, tickformat="~s", ticksuffix="B")
    figure.update_yaxes(type="log", title="bus bandwidth", dtick=1, tickformat="~s", ticksuffix="B/s")
    return finished(figure, legend={**LEGEND, "font": {"size": 11}})


def skew(found: Sequence[tuple[str, Collectives]]) -> go.Figure:
    """Seconds of a rank and step that collectives take, by name: transfer, skew and queueing."""
    figure = go.Figure()
    largest = dict.fromkeys((row.name for _, one in found for row in one.rows), 0.0)
    for row in (row for _, one in found for row in one.rows):
        largest[row.name] += row.total_transfer_ns + row.total_skew_ns + row.total_queue_ns
    names = sorted(largest, key=lambda name: -largest[name])[:MAX_BARS]
    for number, (label, one) in enumerate(found):
        share = 1e9 * max(one.ranks * one.steps, 1)
        for what, said, pattern in (("transfer", "transfer", ""), ("skew", "skew", "/"), ("queue", "queueing", ".")):
            totals = {
                name: sum(getattr(row, f"total_{what}_ns") for row in one.rows if row.name == name) / share
                for name in names
            }
            if what != "transfer" and not any(totals.values()):
                continue
            figure.add_trace(
                go.Bar(
                    y=[escape(name) for name in names],
                    x=list(totals.values()),
                    orientation="h",
                    name=escape(f"{label}: {said}"),
                    offsetgroup=number,
                    marker={"color": ("#0072B2", "#D55E00")[number % 2], "pattern": {"shape": pattern}},
                    hovertemplate="%{y}: %{x:.3~s}s<extra>%{fullData.name}</extra>",
                )
            )
    figure.update_layout(barmode="stack" if len(found) == 1 else "relative")
    figure.update_xaxes(**seconds_axis("of a rank and step"))
    figure.update_yaxes(autorange="reversed", automargin=True)
    return finished(figure, legend=LEGEND)
