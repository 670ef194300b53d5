"""The timeline: bars where they are few enough to be drawn and read, else a picture of all."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboards.colours import DIVERGING
from dashboards.events import CATEGORIES, GAP, WAIT, Events
from dashboards.figures.timeline_picture import CHANGE_LIMIT, COLOURS, WORDS, change_bar, picture
from dashboards.parts import escape, finished, percent, seconds, seconds_axis
from dashboards.timeline.inspect import work_words
from dashboards.timeline.lanes import Lanes
from dashboards.timeline.view import Pair, View
from twin.description.units import format_memory

MAX_BARS = 3000
"""Up to so many ops, each is a bar with words of its own; of more a picture is drawn, which costs the same for any."""
LANE_PIXELS, MAX_PIXELS = 20, 1200
"""Room for a lane's name, until the figure is as high as a screen."""
WIDTH = 0.84
"""Of a lane, the part that its bars fill."""
ALONE = "only one run has it"
HATCHED: dict[str, object] = {"color": "#999", "pattern": {"shape": "x"}}


def height(shown: Lanes) -> int:
    """Pixels that suit the number of lanes."""
    return min(MAX_PIXELS, max(260, 120 + LANE_PIXELS * len(shown.names)))


def whole_window(shown: Lanes) -> tuple[float, float]:
    """From the first begin to the last end, a little room on both sides."""
    if not len(shown.start):
        return 0.0, 1.0
    low, high = float(shown.start.min()), float(shown.end.max())
    room = 0.01 * (high - low or 1.0)
    return low - room, high + room


def timeline(
    pair: Pair,
    events: tuple[Events, ...],
    shown: Lanes,
    view: View,
    window: tuple[float, float] | None,
    *,
    spelled: bool = False,
) -> tuple[go.Figure, str]:
    """Draw what lies in a window of seconds, and say in a sentence what it is.

    Bars carry their run and the place of their event in its step as customdata, such as 1.345. `spelled`: for a
    file without scripts of ours.
    """
    low, high = window or whole_window(shown)
    at = np.flatnonzero((shown.end > low) & (shown.start < high))
    images: list[go.layout.Image] = []
    by_error = view.colour == "error" and len(pair.steps) > 1
    if len(at) <= MAX_BARS and not shown.grouped:
        traces = _bars(pair, events, shown, at, by_error=by_error)
        words = f"{len(at):,} {'gaps' if view.show == GAP else 'ops'}, one bar each"
    else:
        drawn = picture(shown, (low, high), by_error=by_error, spelled=spelled)
        traces, images = list(drawn.traces), [drawn.image]
        words = (
            f"{len(at):,} ops, too many for bars: colours are as high as what they stand for is busy; zoom in for bars"
        )
    figure = go.Figure(traces)
    figure.update_layout(images=images)
    figure.update_xaxes(**seconds_axis("time from the step's begin"), range=[low, high])
    figure.update_yaxes(
        tickvals=list(range(len(shown.names))),
        ticktext=list(shown.names),
        range=[len(shown.names) - 0.5, -0.5],
        fixedrange=True,
        automargin=True,
        ticklabeloverflow="allow",  # none is outside; to make sure, Plotly would measure each
        showgrid=False,
        zeroline=False,
        tickfont={"size": 12 if len(shown.names) <= 60 else 10 if len(shown.names) <= 96 else 8},
    )
    if len(shown.names) > MAX_PIXELS // 8:
        figure.update_yaxes(tickvals=list(range(0, len(shown.names), 8)), ticktext=list(shown.names[::8]))
    finished(
        figure,
        barmode="overlay",
        bargap=0,
        dragmode="zoom",
        uirevision="timeline",
        hovermode="closest",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    )
    return figure, f"{seconds(low)} to {seconds(high)}: {words}."


def _bars(
    pair: Pair, events: tuple[Events, ...], shown: Lanes, at: NDArray[np.int64], *, by_error: bool
) -> list[go.Bar]:
    if by_error:
        change = np.clip(shown.change[at], -CHANGE_LIMIT, CHANGE_LIMIT)
        known = ~np.isnan(change)
        marker = {
            "color": change[known],
            "colorscale": DIVERGING,
            "cmin": -CHANGE_LIMIT,
            "cmax": CHANGE_LIMIT,
            "colorbar": change_bar(),
            "line": {"width": 0.5, "color": "#666"},
        }
        return [
            _trace(pair, events, shown, at[known], "paired", marker),
            _trace(pair, events, shown, at[~known], ALONE, HATCHED),
        ]
    traces = []
    alone = np.zeros(len(at), dtype=bool)
    if len(pair.steps) > 1:  # an op that the other run lacks is hatched
        alone = np.isnan(shown.other[at])
    for number, name in enumerate(CATEGORIES):
        of_kind = at[(shown.category[at] == number) & ~alone]
        if len(of_kind):
            traces.append(
                _trace(pair, events, shown, of_kind, WORDS[name], {"color": COLOURS[number], "line": {"width": 0}})
            )
    lonely = at[alone & (shown.category[at] != CATEGORIES.index(WAIT))]
    if len(lonely):
        traces.append(_trace(pair, events, shown, lonely, ALONE, HATCHED))
    return traces


def _trace(
    pair: Pair, events: tuple[Events, ...], shown: Lanes, at: NDArray[np.int64], name: str, marker: dict[str, object]
) -> go.Bar:
    # as in the picture: of a lane with all streams of a rank compute has the upper half, and hides nothing
    halved = np.array(shown.whole, dtype=bool)[shown.lane[at]]
    upper = shown.category[at] == CATEGORIES.index("compute")
    shift = np.where(halved, np.where(upper, -WIDTH / 4, WIDTH / 4), 0.0)
    width = np.where(halved, WIDTH / 2, WIDTH)
    return go.Bar(
        y=shown.lane[at] + shift,
        x=shown.end[at] - shown.start[at],
        base=shown.start[at],
        orientation="h",
        width=width,
        name=name,
        marker=marker,
        customdata=[f"{s}.{e}" for s, e in zip(shown.side[at].tolist(), shown.event[at].tolist(), strict=True)],
        hoverinfo="text",
        hovertext=[describe(pair, events, shown, place) for place in at.tolist()],
    )


def describe(pair: Pair, events: tuple[Events, ...], shown: Lanes, place: int) -> str:
    """Say what one event is: its op, both times and the difference. Plain text but for line breaks."""
    side, event = int(shown.side[place]), int(shown.event[place])
    step = pair.steps[side]
    row = int(step.row[event])
    of = events[side]
    own, theirs = float(shown.end[place] - shown.start[place]), float(shown.other[place])
    name, is_gap = escape(step.names[step.base[event]]), CATEGORIES[shown.category[place]] == GAP
    if is_gap:
        last = shown.start[place] >= step.end[event] + pair.shift[side]
        name = f"nothing runs {'after the last op, ' if last else 'before '}{name}"
    lines = [name, f"rank {step.rank[event]}, {escape(of.stream[row])}, {pair.labels[side]}"]
    if not np.isnan(theirs):
        times = (own, theirs) if side == 0 else (theirs, own)
        lines += [f"{label}: {seconds(t)}" for label, t in zip(pair.labels, times, strict=True)]
        ratio = f" ({percent(100 * (times[1] / times[0] - 1), 0)})" if times[0] > 0 else ""
        lines.append(f"difference: {seconds(round(times[1] - times[0], 12))}{ratio}")
    else:
        lines.append(seconds(own) + ("" if len(pair.steps) == 1 else ", not in the other run"))
    return "<br>".join(lines if is_gap else [*lines, *_work(of, row, own)])


def _work(of: Events, row: int, own: float) -> list[str]:
    """Say how long an op waited for others, and what it computes or moves."""
    lines = []
    late = (int(of.start_ns[row]) - int(of.arrival_ns[row])) / 1e9
    if late > 0:
        lines.append(f"waited {seconds(late)} for the last member")
    size, flops = float(of.bytes[row]), float(of.flops[row])
    if flops:
        lines.append(work_words(flops, own))
    elif size:
        lines.append(format_memory(size))
    return lines
