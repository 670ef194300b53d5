"""Strategies beside each other: the best that each found, in step time, memory and energy."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.anatomy import SLOWEST
from dashboards.candidates import SavedCandidate
from dashboards.colours import BLUE, GREEN, GREY, IDLE, PURPLE, VERMILION
from dashboards.figures.pareto import FAR
from dashboards.parts import bytes_axis, finished, seconds, seconds_ticks
from twin.description.units import format_memory, format_si
from twin.trace.palette import SLOWEST_DEVICE


def best_of(found: Sequence[SavedCandidate]) -> list[SavedCandidate]:
    """Return the fastest candidate of each strategy, the fastest first."""
    best: dict[str, SavedCandidate] = {}
    for candidate in sorted((c for c in found if c.step_seconds), key=lambda c: c.step_seconds or 0.0):
        best.setdefault(candidate.strategy, candidate)
    return list(best.values())


def beside(best: Sequence[SavedCandidate]) -> go.Figure:
    """Draw a bar for each strategy: its step and what it is made of, memory of a rank, energy of a step."""
    energy = any(c.energy_joules is not None for c in best)
    titles = ("step", "memory of a rank", *(["energy of a step"] if energy else []))
    figure = make_subplots(rows=1, cols=len(titles), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.06)
    strategies = [c.strategy for c in best]
    for name, colour, values in (
        ("compute", BLUE, [c.compute_seconds or 0.0 for c in best]),
        ("exposed communication", VERMILION, [c.exposed_seconds or 0.0 for c in best]),
        (SLOWEST, SLOWEST_DEVICE, [slowest_wait(c) for c in best]),
        ("idle", IDLE, [c.idle_seconds or 0.0 for c in best]),
    ):
        words = [f"{c.name}<br>{name} {seconds(value)}" for c, value in zip(best, values, strict=True)]
        _bars(figure, strategies, values, words, colour, 1, name)
    memory = [c.memory_bytes or 0.0 for c in best]
    said = [f"{c.name}<br>{format_memory(c.memory_bytes or 0.0)}" for c in best]
    _bars(figure, strategies, memory, said, GREEN, 2)
    capacity = max((c.capacity_bytes or 0.0 for c in best), default=0.0)
    if 0 < capacity < FAR * max(memory, default=0.0):
        figure.add_vline(x=capacity, line_dash="dash", line_color=GREY, row=1, col=2)
    if energy:
        joules = [c.energy_joules or 0.0 for c in best]
        said = [f"{c.name}<br>{format_si(value, 'J')}" for c, value in zip(best, joules, strict=True)]
        _bars(figure, strategies, joules, said, PURPLE, 3)
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(rangemode="tozero")
    figure.update_xaxes(**seconds_ticks(), nticks=5, row=1, col=1)
    figure.update_xaxes(**bytes_axis(), nticks=4, row=1, col=2)
    if energy:
        figure.update_xaxes(tickformat="~s", ticksuffix="J", nticks=4, row=1, col=3)
    legend = {"orientation": "h", "y": -0.18, "yanchor": "top"}
    return finished(figure, barmode="stack", hovermode="closest", legend=legend)


def slowest_wait(candidate: SavedCandidate) -> float:
    """What is left of a step beside computing, exposed communication and idle time."""
    parts = (candidate.compute_seconds, candidate.exposed_seconds, candidate.idle_seconds)
    return max((candidate.step_seconds or 0.0) - sum(part or 0.0 for part in parts), 0.0)


def _bars(
    figure: go.Figure,
    strategies: list[str],
    values: list[float],
    words: list[str],
    colour: str,
    column: int,
    name: str = "",
) -> None:
    look = {"orientation": "h", "marker_color": colour, "hovertext": words, "hoverinfo": "text"}
    figure.add_bar(x=values, y=strategies, name=name or None, showlegend=bool(name), row=1, col=column, **look)
