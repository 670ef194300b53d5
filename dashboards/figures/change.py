"""From a step as it is to the step as it would be, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from dashboards.colours import FIRST, SECOND
from dashboards.figures.waterfall import waterfall
from dashboards.parts import finished, seconds, seconds_axis
from twin.compare.terms import Term

NAMES = ("as it is", "what if")
PICOSECONDS = 12
"""Digits of a difference: what is below is rounding."""


def terms(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Term]:
    """Parts of both steps, which add up to them: compute, waits, exposed communication, idle.

    `old` and `new` are what `fourfold simulate --json` prints.
    """
    parts = [
        ("compute", "compute", "compute_seconds"),
        ("slowest", "wait for the slowest device", "slowest_device_wait_seconds"),
    ]
    found = [_term(name, label, old[key], new[key]) for name, label, key in parts]
    found += [
        _term(
            f"exposed_{axis}",
            f"exposed {axis}",
            old["exposed_by_axis"].get(axis, 0.0),
            new["exposed_by_axis"].get(axis, 0.0),
        )
        for axis in reversed(list(dict.fromkeys([*old["exposed_by_axis"], *new["exposed_by_axis"]])))
    ]
    found.append(_term("idle", "idle, peers waited for", old["idle_seconds"], new["idle_seconds"]))
    return found


def _term(name: str, label: str, old: float, new: float) -> Term:
    return Term(name, label, old, new, round(new - old, PICOSECONDS))


def lengths(old: Mapping[str, Any], new: Mapping[str, Any]) -> go.Figure:
    """Draw both steps as a bar each on an axis of time: of more ops than can be drawn that is what is left."""
    times = [float(old["step_seconds"]), float(new["step_seconds"])]
    words = [f"{name}: {seconds(time)}" for name, time in zip(NAMES, times, strict=True)]
    bars = go.Bar(x=times, y=NAMES, orientation="h", marker_color=[FIRST, SECOND], hovertext=words, hoverinfo="text")
    figure = finished(go.Figure(bars), showlegend=False)
    figure.update_xaxes(**seconds_axis("time from the step's begin"), range=[-0.01 * max(times), 1.01 * max(times)])
    return figure.update_yaxes(autorange="reversed", automargin=True, fixedrange=True)


def change(old: Mapping[str, Any], new: Mapping[str, Any]) -> go.Figure:
    """Draw the step as it is, what each part adds or saves, and the step as it would be."""
    return waterfall(old["step_seconds"], new["step_seconds"], terms(old, new), NAMES)
