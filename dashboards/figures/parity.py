"""Predicted against measured: on the diagonal they agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dashboards.colours import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION
from dashboards.events import Floats
from dashboards.parts import escape, finished, seconds, seconds_axis
from twin.pages.ticks import log_ticks

COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY)
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star")
WIDE = 100.0
"""So many times the least value, and more: there Plotly's own ticks are enough."""
DOTTED = 1.2
"""Off by so much a point lies on a dotted line."""
MAX_POINTS = 5000
"""Of more points only the longest ops are drawn; the table has all."""


def parity(
    predicted: Floats,
    measured: Floats,
    sorts: Sequence[str],
    names: Sequence[str],
    *,
    axes: tuple[str, str] = ("predicted", "measured"),
) -> go.Figure:
    """Scatter on log-log axes, one colour and symbol for each sort, and lines at equal and at ± 20 %."""
    figure = go.Figure()
    good = (predicted > 0) & (measured > 0)
    if good.sum() > MAX_POINTS:
        good &= measured >= np.sort(measured[good])[-MAX_POINTS]
    for number, sort in enumerate(dict.fromkeys(sorts)):
        at = np.flatnonzero(good & (np.array(sorts) == sort))
        figure.add_trace(
            go.Scatter(
                x=measured[at],
                y=predicted[at],
                mode="markers",
                name=escape(sort),
                text=[escape(names[i]) for i in at.tolist()],
                marker={"color": COLOURS[number % 7], "symbol": _symbol(number), "size": 7, "opacity": 0.75},
                hovertemplate=f"%{{text}}<br>{axes[1]} %{{x:.3s}}s<br>{axes[0]} %{{y:.3s}}s<extra></extra>",
            )
        )
    ticks: dict[str, Any] = {}
    if good.any():
        both = np.concatenate([predicted[good], measured[good]])
        ends = np.array([both.min() / 1.3, both.max() * 1.3])
        ticks = _ticks(*ends.tolist())
        for factor, dash in ((1.0, "solid"), (DOTTED, "dot"), (1 / DOTTED, "dot")):
            figure.add_trace(
                go.Scatter(
                    x=ends,
                    y=ends * factor,
                    mode="lines",
                    hoverinfo="skip",
                    showlegend=False,
                    line={"color": GREY, "dash": dash, "width": 1},
                )
            )
    figure.update_xaxes(type="log", **seconds_axis(axes[1]), **ticks)
    figure.update_yaxes(type="log", **seconds_axis(axes[0]), **ticks)
    return finished(figure)


def _ticks(least: float, most: float) -> dict[str, Any]:
    """Place ticks of a logarithmic axis: each with its unit, which Plotly gives powers of ten alone."""
    if most > WIDE * least:
        return {"dtick": 1}
    at = log_ticks(least, most)
    return {"tickvals": at, "ticktext": [seconds(value) for value in at]}


def _symbol(number: int) -> str:
    """Symbols and colours are not in step, so that the eighth sort does not look like the first."""
    return SYMBOLS[(number + number // len(COLOURS)) % len(SYMBOLS)]


def errors_by_size(size: Floats, error: Floats, sorts: Sequence[str], names: Sequence[str]) -> go.Figure:
    """Relative error against size, for each sort."""
    figure = go.Figure()
    shown = (size > 0) & ~np.isnan(error)
    if shown.sum() > MAX_POINTS:
        shown &= size >= np.sort(size[shown])[-MAX_POINTS]
    for number, sort in enumerate(dict.fromkeys(sorts)):
        at = np.flatnonzero((np.array(sorts) == sort) & shown)
        figure.add_trace(
            go.Scatter(
                x=size[at],
                y=100 * error[at],
                mode="markers",
                name=escape(sort),
                text=[escape(names[i]) for i in at.tolist()],
                marker={"color": COLOURS[number % 7], "symbol": _symbol(number), "size": 7, "opacity": 0.75},
                hovertemplate="%{text}<br>%{x:.3s}<br>%{y:+.1f} %<extra></extra>",
            )
        )
    figure.add_hline(y=0, line_color=GREY)
    figure.update_xaxes(type="log", title="flops of compute, bytes of collectives", tickformat="~s")
    figure.update_yaxes(title="predicted over measured, less one, %")
    return finished(figure)
