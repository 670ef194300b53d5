"""What is shown of a full-factorial sweep: its best points, which factor matters, and why points cannot run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from twin.pages.picture import Picture
from twin.studies.compute import UNFIT
from twin.studies.derived import Row
from twin.studies.importance import Factor, Importance, Level
from twin.studies.lines import SERIES, text
from twin.studies.objective import feasible
from twin.trace.palette import BLUE, GREEN, LIGHT_GREY, ORANGE

TITLES = ("factor", "importance", "alone", "with others", "mean |SHAP|", "of what can run", "best value")
MAX_LEVELS = 120
"""Values of factors that a picture shows."""


def cells(found: Importance) -> list[tuple[str, ...]]:
    """Return the lines of the table of factors."""
    return [
        (
            factor.name,
            f"{factor.shapley_share:.1%}",
            f"{factor.first_order_share:.1%}",
            f"{factor.total_share:.1%}",
            f"{factor.mean_absolute:.3g}",
            f"{factor.feasibility_share:.1%}",
            factor.best_level(found.objective).value,
        )
        for factor in found.factors
    ]


def words(found: Importance) -> str:
    """Say what the shares are of."""
    unable = found.points - found.feasible
    counted = f"; the {unable:,} points that cannot run count as the worst that can, {found.penalty:.4g}"
    return (
        f"Importance: Shapley shares of the variance of {found.objective} over all {found.points:,} points"
        f"{counted if unable else ''}. They add up to 100 %."
    )


def importance_json(found: Importance | None) -> dict[str, Any] | None:
    """Return the object below `importance` of `study --json`."""
    if found is None:
        return None
    return {
        "objective": found.objective,
        "points": found.points,
        "feasible": found.feasible,
        "penalty": found.penalty,
        "factors": [
            {
                "factor": factor.name,
                "shapley_share": factor.shapley_share,
                "first_order_share": factor.first_order_share,
                "total_share": factor.total_share,
                "mean_absolute": factor.mean_absolute,
                "feasibility_share": factor.feasibility_share,
                "levels": [
                    {
                        "value": level.value,
                        "mean": level.mean,
                        "best": level.best,
                        "feasible_share": level.feasible_share,
                    }
                    for level in factor.levels
                ],
            }
            for factor in found.factors
        ],
    }


def reasons(rows: Sequence[Row]) -> list[tuple[str, int, Row]]:
    """Return why points cannot run: in a word, how many, and the first of them; the most frequent first."""
    unable = [row for row in rows if not feasible(row)]
    counts = Counter(_word(row) for row in unable)
    return [(word, count, next(r for r in unable if _word(r) == word)) for word, count in counts.most_common()]


def _word(row: Row) -> str:
    reason: str = row["reason"]
    if reason.startswith(UNFIT):
        return UNFIT
    return f"a rule about {reason.partition(' = ')[0].partition(':')[0]}" if row["status"] == "refused" else "crashed"


def pictures(found: Importance) -> list[Picture]:
    """Draw which factor matters, and the mean of the objective for each value of each factor."""
    return [_bars(found), _levels(found)]


def _bars(found: Importance) -> Picture:
    shown = found.factors[::-1]
    names = [text(factor.name) for factor in shown]
    kinds = (
        ("all interactions", LIGHT_GREY, [f.total_share for f in shown]),
        ("importance (Shapley)", BLUE, [f.shapley_share for f in shown]),
        ("alone", GREEN, [f.first_order_share for f in shown]),
        ("of what can run", ORANGE, [f.feasibility_share for f in shown]),
    )
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [100.0 * share for share in shares],
            "marker": {"color": colour},
            "hovertemplate": f"%{{y}}: {name} %{{x:.1f}} %<extra></extra>",
        }
        for name, colour, shares in kinds[::-1]
    ]
    layout = {
        "barmode": "group",
        "height": 120 + 80 * len(shown),
        "xaxis": {"title": {"text": "share of the variance (%)"}, "rangemode": "tozero"},
        "yaxis": {"automargin": True, "type": "category"},
        "legend": {"orientation": "h", "traceorder": "reversed", "y": 1.02, "yanchor": "bottom"},
    }
    note = f"{words(found)} Orange: the same of whether a point can run at all."
    return Picture("Which factor matters most", note, data, layout)


def _levels(found: Importance) -> Picture:
    places: list[tuple[int, Level]] = []
    data: list[dict[str, Any]] = []
    for number, factor in enumerate(found.factors):
        begin = len(places) + number  # a place is left between two factors
        here = [(begin + i, level) for i, level in enumerate(factor.levels)]
        if len(places) + len(here) > MAX_LEVELS:
            break
        places += here
        data += _values(factor, here, SERIES[number % len(SERIES)])
    layout = {
        "xaxis": {
            "tickvals": [place for place, _ in places],
            "ticktext": [text(level.value) for _, level in places],
            "automargin": True,
        },
        "yaxis": {"title": {"text": found.objective.replace("_", " ")}, "rangemode": "tozero"},
        "height": 480,
    }
    note = (
        "Diamonds: the best point with each value that can run. Bars: the mean over all points with it, those that "
        "cannot run at the penalty."
    )
    return Picture("What each value does", note, data, layout)


def _values(factor: Factor, here: Sequence[tuple[int, Level]], colour: str) -> list[dict[str, Any]]:
    """Draw the values of one factor."""
    hover = [
        text(
            f"{factor.name} {level.value}: mean {level.mean:.4g}, "
            f"best {'none can run' if level.best is None else f'{level.best:.4g}'}, "
            f"{level.feasible_share:.0%} of its points can run"
        )
        for _, level in here
    ]
    common = {"x": [place for place, _ in here], "hovertext": hover, "hoverinfo": "text"}
    diamond = {"color": colour, "size": 10, "symbol": "diamond"}
    marks = {"type": "scatter", "mode": "markers", "marker": diamond, "showlegend": False}
    bars = {"type": "bar", "name": text(factor.name), "marker": {"color": colour}}
    return [
        common | bars | {"y": [level.mean for _, level in here]},
        common | marks | {"y": [level.best for _, level in here]},
    ]
