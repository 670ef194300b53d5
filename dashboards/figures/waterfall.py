"""From the predicted step to the measured one, term by term."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dashboards.colours import GREY, MEASURED, PREDICTED, SKY, YELLOW
from dashboards.parts import finished, seconds
from twin.compare.terms import Term


def waterfall(
    predicted_seconds: float,
    measured_seconds: float,
    terms: Sequence[Term],
    names: tuple[str, str] = ("predicted", "measured"),
) -> go.Figure:
    """Draw both steps as bars and each term from where the one before ended.

    A bar's customdata is the term's name. Bars are told apart by label and place, colours only help:
    longer than predicted, shorter, unexplained.
    """
    level, base, length, colour = predicted_seconds, [0.0], [predicted_seconds], [PREDICTED]
    for term in terms:
        base.append(level)
        length.append(term.difference_seconds)
        colour.append(YELLOW if term.unexplained else MEASURED if term.difference_seconds > 0 else SKY)
        level += term.difference_seconds
    labels = [names[0], *(term.label for term in terms), names[1]]
    shown = [
        seconds(predicted_seconds),
        *(("+" if t.difference_seconds > 0 else "") + seconds(t.difference_seconds) for t in terms),
        seconds(measured_seconds),
    ]
    figure = go.Figure(
        go.Bar(
            y=labels,
            x=[*length, measured_seconds],
            base=[*base, 0.0],
            orientation="h",
            text=shown,
            textposition="outside",
            cliponaxis=False,
            marker_color=[*colour, GREY],
            customdata=["predicted", *(term.name for term in terms), "measured"],
            hovertext=[f"{label}: {words}" for label, words in zip(labels, shown, strict=True)],
            hoverinfo="text",
        )
    )
    edges = [predicted_seconds, measured_seconds, *(b + n for b, n in zip(base, length, strict=True))]
    low, high = min(edges), max(edges)
    room = 0.15 * (high - low or high or 1.0)
    figure.update_xaxes(title="seconds", range=[max(0.0, low - room), high + room])
    figure.update_yaxes(autorange="reversed", automargin=True)
    return finished(figure, showlegend=False)
