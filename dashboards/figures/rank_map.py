"""A figure of every rank over the grid: what is slow in a row or a column is slow along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import plotly.graph_objects as go

from dashboards.events import Floats
from dashboards.parts import finished, seconds_axis, seconds_ticks
from twin.description.grid import Axes

BINS, FEW = 60, 10
"""Bars of the spread; and ranks in one of them that have a tick each: no tick stands at half a rank."""
MAX_TICKS = 16
"""Of more rows or columns plotly chooses which get a number: all would overlap."""
MAX_NAMED = 4096
"""Of more ranks the pointer shows the number alone."""


def rank_map(
    values: Floats, grid: Axes, label: str, culprits: Sequence[int] = (), *, seconds: bool = False
) -> go.Figure:
    """Draw the outer half of the axes downwards and the inner half across; customdata is the rank.

    `values` are (ranks,), NaN where nothing is known; `culprits` are marked; `seconds`
    says that values are times.
    """
    half = len(grid.axes) // 2
    rows, columns = prod(grid.sizes[:half]), prod(grid.sizes[half:])
    ranks = np.arange(grid.ranks).reshape(rows, columns)
    where = [[_place(grid, int(r)) for r in row] for row in ranks] if grid.ranks <= MAX_NAMED else None
    value = "%{z:.4~s}s" if seconds else "%{z:.4~g}"
    figure = go.Figure(
        go.Heatmap(
            z=values.reshape(rows, columns),
            customdata=ranks,
            colorscale="Cividis",
            colorbar={"title": label, **(seconds_ticks() if seconds else {})},
            text=where,
            hovertemplate=f"{'%{text}' if where else 'rank %{customdata}'}<br>{value}<extra></extra>",
        )
    )
    if culprits:
        row, column = np.divmod(np.array(culprits), columns)
        figure.add_scatter(
            x=column,
            y=row,
            mode="markers",
            name="named by the diagnosis",
            customdata=list(culprits),
            marker={"symbol": "x-thin", "size": 16, "line": {"width": 3, "color": "#D55E00"}},
            hovertemplate="rank %{customdata} is named by the diagnosis<extra></extra>",
        )
    figure.update_xaxes(title=_title(grid, slice(half, None)), dtick=_tick(columns))
    figure.update_yaxes(title=_title(grid, slice(0, half)), autorange="reversed", dtick=_tick(rows))
    return finished(figure)


def _title(grid: Axes, of: slice) -> str:
    """Name the axes along one side, such as "y × x (2 × 4), x fastest"."""
    axes, sizes = grid.axes[of], grid.sizes[of]
    fastest = f", {axes[-1]} fastest" if len(axes) > 1 else ""
    return f"{' × '.join(axes)} ({' × '.join(map(str, sizes))}){fastest}" if axes else ""


def _tick(count: int) -> int | None:
    """Whole numbers only, where few would also be halved."""
    return 1 if count <= MAX_TICKS else None


def _place(grid: Axes, rank: int) -> str:
    return f"rank {rank}: " + ", ".join(f"{axis} {at}" for axis, at in grid.coordinates(rank).items())


def _highest(values: Floats) -> int:
    """Count the ranks in the highest bar of a spread, about: Plotly rounds the ends of bars."""
    known = values[~np.isnan(values)]
    if not len(known):
        return 0
    width = float(known.max() - known.min()) / BINS
    place = (known - known.min()) / width if width > 0 else np.zeros(len(known))
    return int(np.bincount(np.minimum(place, BINS - 1).astype(np.int64)).max())


def spread(values: Floats, label: str, *, seconds: bool = False) -> go.Figure:
    """Draw how the figure is spread over ranks."""
    figure = go.Figure(go.Histogram(x=values[~np.isnan(values)], nbinsx=BINS, marker_color="#0072B2"))
    # lower than usual: else the first tick, where bars begin, touches the lowest of the other axis
    figure.update_xaxes(**{**(seconds_axis() if seconds else {}), "title": label, "ticklabelstandoff": 8})
    figure.update_yaxes(title="number of ranks", **({"dtick": 1} if _highest(values) < FEW else {}))
    return finished(figure, bargap=0.02)
