"""Pictures of a study: those that its own page has, in the dashboard's colours, with bands."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dashboards.colours import IDLE, KINDS, SLOWEST_DEVICE
from dashboards.parts import finished
from dashboards.studies import Opened
from twin.description.problems import fail
from twin.pages.picture import Picture
from twin.strategies import known_axes
from twin.studies.figures import pictures
from twin.trace.palette import BEYOND, axis_colour

PARTS = {
    "compute": KINDS["compute"],
    "wait for the slowest device": SLOWEST_DEVICE,
    "idle, peers waited for": IDLE,
    **{f"exposed {axis}": axis_colour(axis) for axis in (*known_axes()[::-1], *BEYOND)},
}
PATTERNS = {"exposed x": "/", "exposed y": "\\", "exposed z": "x", "exposed data": "."}
"""So that parts are told apart without colour too."""
MAX_DRAWN = 4000
"""Points of a study that are drawn; more are slow in a browser."""


def drawn(opened: Opened) -> list[tuple[str, str, go.Figure]]:
    """Return title, what it says, and figure of each picture of a study. Raises DescriptionError."""
    try:
        found = pictures(opened.study, opened.rows[:MAX_DRAWN], opened.effects)
        return [(p.title, p.note, figure_of(p)) for p in found]
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
        raise fail("points.parquet", f"does not hold what its study asks for: {str(error)[:200]}") from None


def figure_of(picture: Picture) -> go.Figure:
    """Turn one picture into a figure."""
    traces: list[dict[str, Any]] = []
    for trace in picture.data:
        traces += [] if "error_y" not in trace else [band(trace)]
        traces.append(_recoloured(trace))
    layout = {k: v for k, v in picture.layout.items() if k != "height"}
    figure = go.Figure(traces)
    finished(figure, hovermode="closest", legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    figure.update_layout(**layout)
    figure.update_layout(xaxis={"automargin": True}, yaxis={"automargin": True})
    return figure


def band(trace: dict[str, Any]) -> dict[str, Any]:
    """Return the area from p10 to p90 of a line that has both as error bars."""
    up, down = trace["error_y"]["array"], trace["error_y"]["arrayminus"]
    order = sorted(range(len(trace["x"])), key=lambda n: trace["x"][n])
    above = [trace["y"][n] + up[n] for n in order]
    below = [trace["y"][n] - down[n] for n in order]
    along = [trace["x"][n] for n in order]
    colour = trace["line"]["color"]
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return {
        "type": "scatter",
        "x": [*along, *along[::-1]],
        "y": [*above, *below[::-1]],
        "fill": "toself",
        "mode": "lines",
        "line": {"width": 0},
        "fillcolor": f"rgba({red},{green},{blue},0.25)",
        "hoverinfo": "skip",
        "name": f"{trace['name']}, p10 to p90",
    }


def _recoloured(trace: dict[str, Any]) -> dict[str, Any]:
    if trace["type"] == "bar" and trace.get("name") in PARTS:
        name = trace["name"]
        pattern = {"shape": PATTERNS.get(name, ""), "size": 6}
        return trace | {"marker": {"color": PARTS[name], "pattern": pattern}}
    if isinstance(trace.get("marker"), dict) and not trace["marker"].get("symbol", "circle"):
        trace = {k: v for k, v in trace.items() if k != "marker"}  # a line without points
    return trace


def height_of(picture: go.Figure, rows: int) -> int:
    """Pixels that suit a figure: bars that lie need some each."""
    lying = any(getattr(t, "orientation", None) == "h" for t in picture.data)
    return min(1000, 160 + 24 * min(rows, 25)) if lying else 460
