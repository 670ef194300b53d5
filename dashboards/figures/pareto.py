"""Candidates of a search: step time against memory, their options side by side, two orders."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import plotly.graph_objects as go

from dashboards.candidates import SavedCandidate
from dashboards.colours import BLUE, GREEN, GREY, MEASURED, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from dashboards.parts import bytes_axis, finished, seconds, seconds_axis
from twin.description.units import format_memory
from twin.search.page import pareto as front
from twin.search.page import spans_much
from twin.strategies import names
from twin.trace.palette import SEQUENTIAL

MAX_POINTS, MAX_LINES, TOP = 4000, 300, 10
"""Points and lines that a browser still draws at once; and how many of the published model's best are marked."""
MAX_ABREAST = 8
"""Axes of which the numbers at their ends have room beside each other in a small window; those of more are turned."""
FAR = 4.0
"""A device with so many times the memory of all candidates is not drawn: nothing else would be seen."""
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
COLOURS, SYMBOLS = (BLUE, SKY, YELLOW, PURPLE, GREY), ("circle", "diamond", "square", "triangle-up", "cross")
"""Of strategies; other colours stand for the front, what is chosen, and the model's first."""
BANDS = (("fastest quarter", BLUE), ("second", GREEN), ("third", ORANGE), ("slowest quarter", GREY))


def drawable(shown: Sequence[SavedCandidate]) -> list[SavedCandidate]:
    """Candidates with a step and memory, fastest first."""
    known = [c for c in shown if c.step_seconds is not None and c.memory_bytes is not None]
    return sorted(known, key=lambda c: c.step_seconds or 0.0)


def pareto(shown: Sequence[SavedCandidate], chosen: Sequence[int] = ()) -> go.Figure:
    """Step time against memory; customdata is a candidate's number.

    The fastest are drawn, and of all others those that nothing beats.
    """
    known = drawable(shown)
    if not known:
        return nothing("No candidate that was simulated is left to draw.")
    whole = [(c.step_seconds or 0.0, c.memory_bytes or 0.0) for c in known]
    kept = {*range(min(MAX_POINTS, len(known))), *front(whole)}
    known = [c for n, c in enumerate(known) if n in kept or c.number in chosen]
    places = [(c.step_seconds or 0.0, c.memory_bytes or 0.0) for c in known]
    best = front(places)
    exposed = [100 * (c.exposed_seconds or 0.0) / (c.step_seconds or 1.0) for c in known]
    by_exposed = {
        "color": exposed,
        "colorscale": SEQUENTIAL,
        "size": 8,
        "line": {"width": 0.7, "color": GREY},
        "colorbar": {"title": {"text": "exposed (%)"}, "thickness": 14},
    }
    looks = looks_of(known)
    figure = go.Figure(
        [
            *(
                _points(
                    known, places, [n for n, c in enumerate(known) if c.strategy == name], name, {**look, "size": 8}
                )
                for name, look in looks.items()
            ),
            *([] if looks else [_points(known, places, range(len(known)), "candidates", by_exposed)]),
            go.Scatter(
                x=[places[n][0] for n in best],
                y=[places[n][1] for n in best],
                mode="lines",
                name="front",
                line={"color": VERMILION, "width": 2},
                hoverinfo="skip",
            ),
            _points(
                known,
                places,
                [n for n, c in enumerate(known) if c.model_rank and c.model_rank <= TOP],
                f"the model's first {TOP}",
                {"size": 14, "symbol": "circle-open", "color": GREEN, "line_width": 2},
            ),
            _points(
                known,
                places,
                [n for n, c in enumerate(known) if c.number in chosen],
                "chosen",
                {"size": 17, "symbol": "square-open", "color": ORANGE, "line": {"width": 3}},
            ),
        ]
    )
    capacity = max((c.capacity_bytes or 0.0 for c in known), default=0.0)
    if capacity and capacity < FAR * max((p[1] for p in places), default=0.0):
        figure.add_hline(
            y=capacity, line_dash="dash", line_color=GREY, annotation_text="device", annotation_position="top left"
        )
    times = [p[0] for p in places]
    figure.update_xaxes(**(decades("step", times) if spans_much(times) else seconds_axis("step")))
    figure.update_yaxes(**bytes_axis("memory of a rank"), rangemode="tozero")
    return finished(figure, hovermode="closest", legend=LEGEND)


def nothing(why: str) -> go.Figure:
    """Return one sentence in place of a figure: axes without points would be invented."""
    words = {"text": why, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    return finished(go.Figure(), annotations=[words], xaxis={"visible": False}, yaxis={"visible": False})


def decades(title: str, values: Sequence[float]) -> dict[str, Any]:
    """Return the look of a logarithmic axis of seconds: ticks at 1, 2 and 5 of each power of ten, a unit at each."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = (math.floor(math.log10(end)) for end in (min(known), max(known)))
    ticks = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    return {"title": title, "type": "log", "tickvals": ticks, "ticktext": [seconds(tick) for tick in ticks]}


def looks_of(shown: Sequence[SavedCandidate]) -> dict[str, dict[str, object]]:
    """Return the colour and the symbol of each strategy's points, always the same; nothing of a search under one."""
    if not any(c.several for c in shown):
        return {}
    there = {c.strategy for c in shown}
    looks = zip(names(), cycle(COLOURS), cycle(SYMBOLS))
    return {name: {"color": colour, "symbol": symbol, "size": 8} for name, colour, symbol in looks if name in there}


def _points(
    known: Sequence[SavedCandidate],
    places: Sequence[tuple[float, float]],
    at: Sequence[int],
    name: str,
    marker: dict[str, object],
) -> go.Scatter:
    return go.Scatter(
        x=[places[n][0] for n in at],
        y=[places[n][1] for n in at],
        mode="markers",
        name=name,
        marker=marker,
        customdata=[known[n].number for n in at],
        hoverinfo="text",
        hovertext=[describe(known[n]) for n in at],
    )


def describe(candidate: SavedCandidate) -> str:
    """Say what a candidate is; everything in it is a number or a word of ours."""
    options = candidate.options.words_on(candidate.grid)
    return "<br>".join(
        [
            f"{candidate.name}{_place_words(candidate)}",
            f"{seconds(candidate.step_seconds or 0.0)}, {format_memory(candidate.memory_bytes or 0.0)}",
            f"{candidate.micro_sequences} sequence{'' if candidate.micro_sequences == 1 else 's'} at a time",
            ", ".join(options.values()),
        ]
    )


def _place_words(candidate: SavedCandidate) -> str:
    """Say a candidate's places: of several strategies among all and within its own, whose the model's order is too."""
    place, rank, model = candidate.place, candidate.rank, candidate.model_rank
    of = f" of {candidate.strategy}" if candidate.several else ""
    said = "" if place is None else f", place {place:,}"
    if place is not None and candidate.several:
        said += " of all" + ("" if rank is None else f", {rank:,}{of}")
    elif place is not None and candidate.by_energy:
        said += " by joules" + ("" if rank is None else f", {rank:,} in time")
    return said + ("" if model is None else f" (the model's {model:,}{of})")


def modelled(shown: Sequence[SavedCandidate]) -> str:
    """Return " of STRATEGY" whose candidates the published model has in order; empty of a search under one."""
    ordered = dict.fromkeys(c.strategy for c in shown if c.several and c.model_rank is not None)
    return f" of {' and '.join(ordered)}" if ordered else ""


Axis = tuple[str, Callable[[SavedCandidate], float], bool, Callable[[float], str]]


def coordinates(known: Sequence[SavedCandidate]) -> tuple[Axis, ...]:
    """Return the axes of the drawing: name, value, whether it is drawn on a logarithmic scale, how it is written."""
    names = dict.fromkeys(axis for c in known for axis in c.grid.axes)
    sizes: list[Axis] = [(axis, partial(_size, axis), True, "{:,.0f}".format) for axis in names]
    return (
        *sizes,
        ("micro-batch", lambda c: float(c.micro_sequences or 1), True, "{:,.0f}".format),
        ("memory", lambda c: c.memory_bytes or 0.0, False, format_memory),
        ("exposed", lambda c: 100 * (c.exposed_seconds or 0.0) / (c.step_seconds or 1.0), False, "{:.3g} %".format),
        ("step", lambda c: c.step_seconds or 0.0, True, seconds),
    )


def _size(axis: str, candidate: SavedCandidate) -> float:
    return float(candidate.grid.size(axis)) if axis in candidate.grid.axes else 1.0


def parallel(shown: Sequence[SavedCandidate]) -> go.Figure:
    """A line for each of the fastest candidates through all of its options, coloured by its quarter in time.

    Drawn as SVG lines: Plotly's own parallel coordinates need WebGL and compile code in the browser.
    """
    known = drawable(shown)[:MAX_LINES]
    if not known:
        return nothing("No candidate that was simulated is left to draw.")
    axes = coordinates(known)
    figure = go.Figure()
    ends = [_ends([value(c) for c in known], log=log) for _, value, log, _ in axes]
    for number, (name, colour) in reversed(list(enumerate(BANDS))):  # the fastest on top
        x: list[float | None] = []
        y: list[float | None] = []
        words: list[str] = []
        for place, candidate in enumerate(known):
            if place * len(BANDS) // len(known) != number:
                continue
            for axis, (_, value, log, _) in enumerate(axes):
                x.append(axis)
                y.append(_share(value(candidate), ends[axis], log=log))
                words.append(describe(candidate))
            x.append(None)
            y.append(None)
            words.append("")
        if x:
            figure.add_trace(
                go.Scatter(
                    x=x,
                    y=y,
                    mode="lines+markers",
                    name=name,
                    hoverinfo="text",
                    hovertext=words,
                    opacity=0.75,
                    line={"color": colour, "width": 1.2},
                    marker={"size": 4},
                    legendrank=number,
                )
            )
    turned = {"textangle": -90} if len(axes) > MAX_ABREAST else {}
    for axis, (low, high) in enumerate(ends):
        for at, end, side in ((-0.03, low, "top"), (1.03, high, "bottom")):
            text = axes[axis][3](end)
            figure.add_annotation(x=axis, y=at, text=text, yanchor=side, showarrow=False, font={"size": 12}, **turned)
    figure.update_xaxes(
        tickvals=list(range(len(axes))),
        ticktext=[name for name, *_ in axes],
        range=[-0.4, len(axes) - 0.6],
        showgrid=True,
        zeroline=False,
        **({"tickangle": -90, "automargin": True} if turned else {}),
    )
    beyond = 0.35 if turned else 0.12
    figure.update_yaxes(visible=False, range=[-beyond, 1 + beyond])
    return finished(figure, hovermode="closest", legend=LEGEND)


def _ends(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    known = [v for v in values if v > 0 or not log] or [1.0]
    return min(known), max(known)


def _share(value: float, ends: tuple[float, float], *, log: bool) -> float:
    """Where a value lies between two others, 0 to 1; the middle if they are the same."""
    low, high = ends
    if high <= low:
        return 0.5
    if log:
        return math.log(max(value, low) / low) / math.log(high / low)
    return (value - low) / (high - low)


def orders(shown: Sequence[SavedCandidate]) -> go.Figure:
    """The published model's order against the simulated one, both within a strategy."""
    known = [c for c in shown if c.rank is not None and c.model_rank is not None][:MAX_POINTS]
    if not known:
        return nothing("No candidate has both a place by the published model and one in simulated time.")
    figure = go.Figure()
    first = [c for c in known if (c.model_rank or 0) <= TOP]
    others = [c for c in known if (c.model_rank or 0) > TOP]
    for name, colour, symbol, of in (
        ("others", SKY, "circle", others),
        (f"the model's first {TOP}", MEASURED, "diamond", first),
    ):
        figure.add_trace(
            go.Scatter(
                x=[c.model_rank for c in of],
                y=[c.rank for c in of],
                mode="markers",
                name=name,
                hoverinfo="text",
                hovertext=[describe(c) for c in of],
                marker={"color": colour, "symbol": symbol, "size": 7},
                customdata=[c.number for c in of],
            )
        )
    among = f", among those{modelled(known)}" if modelled(known) else ""
    most = max((max(c.rank or 1, c.model_rank or 1) for c in known), default=1)
    figure.add_trace(
        go.Scatter(
            x=[1, most],
            y=[1, most],
            mode="lines",
            name="same place",
            hoverinfo="skip",
            line={"color": GREY, "dash": "dot"},
        )
    )
    figure.update_xaxes(title=f"place by the published model{among}")
    figure.update_yaxes(title=f"place in simulated time{among}")
    return finished(figure, hovermode="closest", legend=LEGEND)
