"""What lies over the timeline: the chosen op, arrows to those it met, the critical path; and the map of the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from dash import Patch
from plotly.colors import hex_to_rgb

from dashboards.colours import VERMILION
from dashboards.events import CATEGORIES
from dashboards.figures.timeline_picture import COLOURS, COLUMNS, WORDS, placed
from dashboards.parts import finished, seconds, seconds_ticks
from dashboards.timeline.lanes import Lanes
from dashboards.timeline.meetings import Link, Meetings
from dashboards.timeline.raster import coverage, painted
from dashboards.timeline.view import Pair

MAX_ARROWS = 48
"""From the member that came last to the others: of more the picture would be full."""
MAP_ROWS, MAP_PIXELS = 24, 54
INK = "#7A2EB8"
"""Of marks: none of an op's colours, seen on white and on black."""


def mark(figure: go.Figure, pair: Pair, shown: Lanes, meetings: Meetings | None, side: int, event: int) -> None:
    """Frame an op, and draw arrows from the member that came last to all others that are drawn."""
    lane = _lane(shown, side, event)
    if lane is None:
        return
    step, shift = pair.steps[side], pair.shift[side]
    x = (float(step.start[event]) + shift, float(step.end[event]) + shift)
    frame = {"type": "rect", "line": {"color": INK, "width": 3}, "fillcolor": "rgba(0,0,0,0)"}
    figure.add_shape(x0=x[0], x1=x[1], y0=lane - 0.48, y1=lane + 0.48, **frame)
    there = [] if meetings is None else meetings.members(event).tolist()
    if len(there) < 2 or meetings is None:
        return
    last = there[-1]
    source, moment = _lane(shown, side, last), float(meetings.arrival[last]) + shift
    if source is None:
        return
    for member in there[:-1][-MAX_ARROWS:]:
        target = _lane(shown, side, member)
        if target is not None:
            figure.add_annotation(
                x=float(step.start[member]) + shift,
                y=target,
                ax=moment,
                ay=source,
                xref="x",
                yref="y",
                axref="x",
                ayref="y",
                text="",
                showarrow=True,
                arrowhead=2,
                arrowwidth=1.5,
                arrowcolor=INK,
            )


def path(figure: go.Figure, pair: Pair, shown: Lanes, side: int, links: Sequence[Link]) -> str:
    """Draw the critical path of a run over its lanes; say what it is made of."""
    step, shift = pair.steps[side], pair.shift[side]
    lane_of = {
        (int(step.rank[e]), int(step.stream[e])): int(lane)
        for e, lane in zip(
            shown.event[shown.side == side].tolist(), shown.lane[shown.side == side].tolist(), strict=True
        )
    }
    x: list[float | None] = []
    y: list[float | None] = []
    total = dict.fromkeys(CATEGORIES, 0.0)
    for link in links:
        total[CATEGORIES[int(step.category[link.event])]] += link.end - link.start
        lane = lane_of.get((int(step.rank[link.event]), int(step.stream[link.event])))
        if lane is None:
            x.append(None)
            y.append(None)
        else:
            x += [link.start + shift, link.end + shift]
            y += [lane, lane]
    line = {"color": INK, "width": 3}
    figure.add_scatter(x=x, y=y, mode="lines", line=line, name="critical path", hoverinfo="skip")
    gap = step.length - sum(total.values())
    parts = sorted(((v, WORDS[k]) for k, v in total.items() if v > 0), reverse=True)
    words = ", ".join(f"{name} {seconds(value)} ({100 * value / step.length:.0f} %)" for value, name in parts)
    rest = f", nothing {seconds(gap)} ({100 * gap / step.length:.0f} %)" if gap > 0.0005 * step.length else ""
    return f"Critical path, {pair.labels[side]}: {words}{rest}."


def overview(shown: Lanes, whole: tuple[float, float], window: tuple[float, float]) -> go.Figure:
    """Draw the map of the whole step: each kind's share of the lanes, the busiest moment full; and the window."""
    lanes = max(len(shown.names), 1)
    shares = coverage(
        np.zeros(len(shown.lane), dtype=np.int16),
        shown.category,
        shown.start,
        shown.end,
        whole,
        (len(CATEGORIES), 1, COLUMNS),
        np.full(len(shown.lane), 1.0 / lanes),
    )
    highest = float(shares.sum(axis=0).max()) or 1.0  # a map of what is where: the busiest moment fills it
    colours = np.array([hex_to_rgb(colour) for colour in COLOURS], dtype=np.float32)
    figure = go.Figure(go.Scatter(x=list(whole), y=[0, 0], mode="markers", marker={"opacity": 0}, hoverinfo="skip"))
    figure.update_layout(images=[placed(painted(shares / highest, colours, MAP_ROWS), whole, 1)])
    frame = {"color": VERMILION, "width": 2}
    figure.add_shape(
        type="rect", x0=window[0], x1=window[1], y0=-0.5, y1=0.5, line=frame, fillcolor="rgba(213,94,0,0.12)"
    )
    figure.update_xaxes(range=list(whole), **seconds_ticks(), showgrid=False, tickfont={"size": 10})
    figure.update_yaxes(range=[0.5, -0.5], visible=False, fixedrange=True)
    finished(figure, dragmode="zoom", showlegend=False, uirevision=f"{window}")
    return figure.update_layout(margin={"t": 2, "b": 18})


def reframed(window: tuple[float, float]) -> Patch:
    """Move the window on the map that is there: its picture, of the whole step, stays."""
    patch = Patch()
    patch["layout"]["shapes"][0]["x0"], patch["layout"]["shapes"][0]["x1"] = window
    patch["layout"]["uirevision"] = f"{window}"
    return patch


def _lane(shown: Lanes, side: int, event: int) -> int | None:
    found = np.flatnonzero((shown.side == side) & (shown.event == event))
    return int(shown.lane[found[0]]) if len(found) else None
