"""Of more ops than can be bars: a picture in which colours are as high as what they stand for is busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.colors import hex_to_rgb, sample_colorscale
from plotly.utils import image_array_to_data_uri

from dashboards.colours import DIVERGING, KINDS, YELLOW
from dashboards.events import CATEGORIES, COLOURED_AXES, GAP, OTHER, WAIT, Floats
from dashboards.parts import escape, seconds
from dashboards.timeline.lanes import Lanes
from dashboards.timeline.raster import coverage, painted
from twin.trace.palette import BEYOND, axis_colour

COLUMNS = 1400
"""Pixels of the picture: about those of the figure on a screen."""
ROWS, MIN_ROWS, MAX_ROWS = 1100, 4, 16
"""Of all lanes together about as many as a screen has; of one lane, its gap to the next included."""
CELLS = 10_000
"""Places of the picture that have words of their own: they travel with it."""
SOME = 0.0005
"""Shares below are said as none."""
WORDS = {
    "compute": "compute",
    **{axis: f"beyond the device, {axis}" if axis in BEYOND else f"collective, {axis}" for axis in COLOURED_AXES},
    OTHER: f"collective, {OTHER}",
    WAIT: "wait",
    GAP: "gap between ops: host",
}
COLOURS = [YELLOW if name == GAP else KINDS.get(name) or axis_colour(name) for name in CATEGORIES]
CHANGE_LIMIT = 2.0
"""log2 of the ratio at which colours end: four times as long, or a quarter."""
STEPS = 64
"""Shades of the colours by error."""


@dataclass(frozen=True)
class Drawn:
    """A picture that lies below the axes' traces, and what the pointer and the legend say of it."""

    image: go.layout.Image
    traces: tuple[go.Heatmap | go.Bar | go.Scatter, ...]


def change_bar() -> dict[str, object]:
    """Return the legend of colours by error."""
    return {"title": "measured over<br>predicted", "tickvals": [-2, -1, 0, 1, 2], "ticktext": ["¼", "½", "1", "2", "4"]}


def picture(shown: Lanes, window: tuple[float, float], *, by_error: bool, spelled: bool = False) -> Drawn:
    """Draw a window of all lanes; by kind, or by how much longer ops took than in the other run."""
    shape = (len(CATEGORIES), len(shown.names), COLUMNS)
    shares = coverage(shown.lane, shown.category, shown.start, shown.end, window, shape, shown.weight)
    pixels = _by_error(shown, window) if by_error else _by_kind(shown, shares)
    legend = [_error_legend()] if by_error else _legend(shares)
    return Drawn(placed(pixels, window, shape[1]), (_words(shown, shares, window, spelled=spelled), *legend))


def placed(pixels: NDArray[np.uint8], window: tuple[float, float], lanes: int) -> go.layout.Image:
    """Lay a picture (rows, columns, 4) over a window of seconds and all lanes."""
    return go.layout.Image(
        source=image_array_to_data_uri(pixels, backend="pypng", compression=1),
        xref="x",
        yref="y",
        x=window[0],
        y=-0.5,
        sizex=window[1] - window[0],
        sizey=lanes,
        sizing="stretch",
        layer="below",
    )


def rows_of(lanes: int) -> tuple[int, int]:
    """Rows of the picture that a lane has, and those of them that are left empty above it."""
    rows = min(MAX_ROWS, max(MIN_ROWS, ROWS // max(lanes, 1)))
    return rows, 1 if rows < MAX_ROWS else 2


def _by_kind(shown: Lanes, shares: Floats) -> NDArray[np.uint8]:
    """Paint kinds; where one lane holds all streams of a rank, compute in its upper half and all else below."""
    colours = np.array([hex_to_rgb(colour) for colour in COLOURS], dtype=np.float32)
    lanes = shares.shape[1]
    rows, gap = rows_of(lanes)
    whole = np.array(shown.whole, dtype=bool)
    half = (rows - gap) // 2
    pixels = np.empty((lanes, rows - gap, COLUMNS, 4), dtype=np.uint8)
    for at, first, last, kinds in (
        (whole, 0, rows - gap - half, slice(0, 1)),
        (whole, rows - gap - half, rows - gap, slice(1, None)),
        (~whole, 0, rows - gap, slice(None)),
    ):
        drawn = painted(shares[kinds][:, at], colours[kinds], last - first)
        pixels[at, first:last] = drawn.reshape(-1, last - first, COLUMNS, 4)
    return spaced([pixels.reshape(-1, COLUMNS, 4)], lanes, gap)


def _by_error(shown: Lanes, window: tuple[float, float]) -> NDArray[np.uint8]:
    known = ~np.isnan(shown.change)
    lane, none = shown.lane[known], np.zeros(known.sum(), dtype=np.int8)
    start, end = shown.start[known], shown.end[known]
    change = np.clip(shown.change[known], -CHANGE_LIMIT, CHANGE_LIMIT)
    shape = (1, len(shown.names), COLUMNS)
    share = coverage(lane, none, start, end, window, shape)
    sums = coverage(lane, none, start, end, window, shape, weight=change)
    mean = sums / np.maximum(share, 1e-12)
    at = np.clip((mean + CHANGE_LIMIT) / (2 * CHANGE_LIMIT) * (STEPS - 1), 0, STEPS - 1).round().astype(int)
    shades = sample_colorscale(DIVERGING, list(np.linspace(0, 1, STEPS)), colortype="tuple")
    rows, gap = rows_of(shape[1])
    return spaced([painted(share, 255 * np.array(shades)[at], rows - gap)], shape[1], gap)


def spaced(parts: list[NDArray[np.uint8]], lanes: int, gap: int) -> NDArray[np.uint8]:
    """Put the parts of each lane below one another, and some empty rows above each."""
    columns = parts[0].shape[1]
    of_lanes = [part.reshape(lanes, -1, columns, 4) for part in parts]
    empty = np.zeros((lanes, gap, columns, 4), dtype=np.uint8)
    return np.concatenate([empty, *of_lanes], axis=1).reshape(-1, columns, 4)


def _words(shown: Lanes, shares: Floats, window: tuple[float, float], *, spelled: bool) -> go.Heatmap:
    """Say of each place of the picture its lane, and for what share of the time each kind is busy there.

    The shares travel as numbers, in percent, and become words when the pointer comes (`timeline.js`): as words
    they were half of the page. `spelled`: as words at once, for a file without scripts of ours.
    """
    lanes = len(shown.names)
    most = max(1, min(COLUMNS, CELLS // max(lanes, 1)))
    columns = max(n for n in range(1, most + 1) if COLUMNS % n == 0)  # of one width: such a heatmap is drawn at once
    means = shares.reshape(len(CATEGORIES), lanes, columns, COLUMNS // columns).mean(axis=3)
    kinds = [kind for kind in range(len(CATEGORIES)) if (means[kind] > SOME).any()]
    names, words = [escape(name) for name in shown.names], [WORDS[CATEGORIES[kind]] for kind in kinds]
    percent = np.ascontiguousarray(100 * np.moveaxis(means[kinds], 0, 2), dtype=np.float32)
    width = (window[1] - window[0]) / columns
    return go.Heatmap(
        z=means.sum(axis=0).astype(np.float32),
        x0=window[0] + width / 2,
        dx=width,
        y0=0,
        dy=1,
        zsmooth="fast",
        showscale=False,
        colorscale=[[0, "rgba(0,0,0,0)"], [1, "rgba(0,0,0,0)"]],
        **(
            {
                "text": spelled_out(names, words, percent),
                "hovertemplate": f"%{{text}}<br>around %{{x:.6~g}} s, {seconds(width)}<extra></extra>",
            }
            if spelled
            else {
                "customdata": percent,
                "meta": {"lanes": names, "kinds": words, "width": seconds(width)},
                "hoverinfo": "text",
            }
        ),
    )


def spelled_out(lanes: Sequence[str], kinds: Sequence[str], percent: NDArray[np.float32]) -> list[list[str]]:
    """Put the shares (lanes, columns, kinds) of all places into words, as `timeline.js` does for one."""
    return [
        [_said(lane, [(kind, float(share)) for kind, share in zip(kinds, place, strict=True)]) for place in places]
        for lane, places in zip(lanes, percent, strict=True)
    ]


def _said(lane: str, busy: list[tuple[str, float]]) -> str:
    parts = [f"{name} {percent:.3g} %" for name, percent in busy if percent > 100 * SOME]
    return "<br>".join([lane, *(parts or ["nothing"])])


def _legend(shares: Floats) -> list[go.Bar]:
    """Empty bars, for the legend: what of the kinds is there."""
    there = [kind for kind in range(len(CATEGORIES)) if shares[kind].any()]
    return [go.Bar(x=[None], y=[None], name=WORDS[CATEGORIES[k]], marker_color=COLOURS[k]) for k in there]


def _error_legend() -> go.Scatter:
    """Nothing but the bar of colours."""
    marker = {"color": [0.0], "colorscale": DIVERGING, "cmin": -CHANGE_LIMIT, "cmax": CHANGE_LIMIT}
    return go.Scatter(
        x=[None],
        y=[None],
        mode="markers",
        showlegend=False,
        marker={**marker, "colorbar": change_bar(), "showscale": True},
    )
