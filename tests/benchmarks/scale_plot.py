"""Draw how simulation grows, from what `tests.benchmarks.scale` measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

COLOURS = {"folded": "#0072B2", "ranks": "#D55E00"}
NAMES = {"folded": "one rank of each class", "ranks": "every rank"}
PANELS = (
    ("ranks", "ranks", "cpu_seconds", "CPU seconds"),
    ("layers", "layers", "cpu_seconds", "CPU seconds"),
    ("ranks", "ranks", "peak_megabytes", "peak megabytes"),
)


def plot(found: dict[str, Any], path: Path) -> None:
    """Write one page: processor time against ranks and layers, memory against ranks."""
    figure = make_subplots(1, len(PANELS), horizontal_spacing=0.08)
    for column, (series, along, what, title) in enumerate(PANELS, start=1):
        for engine, colour in COLOURS.items():
            rows = [r for r in found["scale"] if r["series"] == series and r["engine"] == engine]
            figure.add_trace(
                go.Scatter(
                    x=[r[along] for r in rows],
                    y=[r[what] for r in rows],
                    mode="lines+markers",
                    line_color=colour,
                    name=NAMES[engine],
                    showlegend=column == 1,
                ),
                row=1,
                col=column,
            )
        figure.update_xaxes(title=along, type="log" if along == "ranks" else "linear", row=1, col=column)
        figure.update_yaxes(title=title, type="log", row=1, col=column)
    figure.update_layout(
        template="plotly_white",
        height=420,
        width=1300,
        margin={"t": 60, "r": 20},
        title=f"GPT-320B, one step, process start included — {found['machine']}, {found['date']}",
        legend={"orientation": "h", "y": 1.12, "x": 1, "xanchor": "right"},
    )
    figure.write_html(path, include_plotlyjs=True, config={"displaylogo": False, "displayModeBar": False})
