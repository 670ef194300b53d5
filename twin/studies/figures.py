"""Pictures of a study, as plain data for plotly: no plotting library is loaded to make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from twin.description.units import format_amount
from twin.pages.picture import Picture
from twin.pages.ticks import log_ticks
from twin.strategies import known_axes
from twin.studies.derived import Effect, Row, by_series, label_of, words_of
from twin.studies.description import Study
from twin.studies.objective import best_first, feasible
from twin.studies.table import grid_of
from twin.trace.palette import (
    BEYOND,
    BLUE,
    DARK_GREY,
    GREEN,
    IDLE,
    KINDS,
    LIGHT_GREY,
    ORANGE,
    PURPLE,
    SKY,
    SLOWEST_DEVICE,
    VERMILION,
    axis_colour,
)

SERIES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, DARK_GREY, LIGHT_GREY)
"""Lines of a picture, one after the other; they stand for no axis."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x", "star", "cross")
PARTS = {
    "compute_seconds": ("compute", KINDS["compute"]),
    "slowest_device_wait_seconds": ("wait for the slowest device", SLOWEST_DEVICE),
    **{f"exposed_{axis}_seconds": (f"exposed {axis}", axis_colour(axis)) for axis in (*known_axes()[::-1], *BEYOND)},
    "idle_seconds": ("idle, peers waited for", IDLE),
}
"""What a step is made of, in the colours that axes have everywhere."""
MAX_BARS, MAX_LINES, MAX_EFFECTS, MAX_NUMBERED_CELLS = 60, 24, 25, 200
WIDE = 4.0
"""Numbers whose largest is so many times the smallest are drawn on a logarithmic axis."""
DAY = 86400.0


def pictures(study: Study, rows: Sequence[Row], found: Sequence[Effect]) -> list[Picture]:
    """Return the pictures that fit the kind of a study."""
    done = [row for row in rows if "step_seconds" in row]
    if not done:
        return []
    if study.study == "sensitivity":
        return [tornado(found)] if found else []
    strong = study.study == "strong_scaling"
    if study.horizontal == "name":
        return [breakdown(study, done)]
    drawn = []
    if study.study != "sweep" or len(by_series(study, done)) <= MAX_LINES:  # of hundreds of lines none is seen
        drawn.append(_lines(study, done, "step_seconds", "Step time", "s", ideal=strong))
    if any("efficiency" in row for row in done):
        drawn.append(_efficiency(study, done))
    elif study.study == "sweep" and len(study.varied) == 2:
        drawn.append(heat_map(study, done))
    if study.target is not None:
        drawn.append(_to_target(study, done))
    drawn.append(breakdown(study, done))
    return drawn


def _lines(
    study: Study, rows: Sequence[Row], column: str, title: str, unit: str, *, ideal: bool = False, measured: bool = True
) -> Picture:
    """Draw one line for each series; measured points hollow, ideal strong scaling dotted."""
    series = by_series(study, rows)
    data: list[dict[str, Any]] = []
    beside = False
    for number, (name, members) in enumerate(list(series.items())[:MAX_LINES]):
        colour, symbol = (SERIES[number % len(SERIES)], SYMBOLS[number // len(SERIES) % len(SYMBOLS)])
        x = [_across(row, study.horizontal) for row in members]
        shown = name or "predicted"
        data.append(
            _line(shown, x, [row[column] for row in members], colour, symbol, [_hover(study, row) for row in members])
        )
        if column == "step_seconds" and all("step_seconds_p50" in row for row in members):
            data[-1] |= _spread(members)
        if ideal and len(members) > 1:
            first = min([row for row in members if feasible(row)] or members, key=lambda row: row["ranks"])
            perfect = [first[column] * first["ranks"] / row["ranks"] for row in members]
            data.append(
                _line("ideal", x, perfect, colour, "", [])
                | {
                    "mode": "lines",
                    "line": {"color": colour, "width": 1, "dash": "dot"},
                    "showlegend": False,
                    "hoverinfo": "skip",
                }
            )
        known = [row for row in members if measured and "measured_step_seconds" in row]
        if known:
            beside = True
            data.append(_measured(study, known, shown, colour))
    note = "Filled: predicted. Hollow: measured, beside and never fitted." if beside else ""
    if any("step_seconds_p50" in row for row in rows):
        note = f"{note} Median over seeds; bars from p10 to p90.".strip()
    if len(series) > MAX_LINES:
        note = f"{note} The first {MAX_LINES} of {len(series)} lines.".strip()
    if ideal:
        note = f"{note} Dotted: ideal.".strip()
    layout = {
        "xaxis": _axis(study.horizontal, [_across(row, study.horizontal) for row in rows]),
        "yaxis": {"title": {"text": f"{title.lower()} ({unit})"}},
    }
    layout["yaxis"] |= _logarithmic([y for line in data for y in line["y"]]) if ideal else {"rangemode": "tozero"}
    return Picture(title, note, data, layout)


def _logarithmic(values: Sequence[float]) -> dict[str, Any]:
    ticks = log_ticks(min(values), max(values))
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}


def _line(
    name: str, x: Sequence[Any], y: Sequence[float], colour: str, symbol: str, hover: Sequence[str]
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": text(name),
        "x": [_place(v) for v in x],
        "y": list(y),
        "line": {"color": colour},
        "marker": {"color": colour, "size": 8, "symbol": symbol},
        "hovertext": list(hover),
        "hoverinfo": "text",
    }


def _spread(rows: Sequence[Row]) -> dict[str, Any]:
    """Put the median over seeds in place of one seed's step, with bars from p10 to p90."""
    middle = [row["step_seconds_p50"] for row in rows]
    up = [row["step_seconds_p90"] - y for row, y in zip(rows, middle, strict=True)]
    down = [y - row["step_seconds_p10"] for row, y in zip(rows, middle, strict=True)]
    return {"y": middle, "error_y": {"type": "data", "array": up, "arrayminus": down}}


def _measured(study: Study, rows: Sequence[Row], name: str, colour: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": text(f"{name}, measured" if study.series else "measured"),
        "x": [_place(_across(row, study.horizontal)) for row in rows],
        "y": [row["measured_step_seconds"] for row in rows],
        "marker": {"color": colour, "size": 11, "symbol": "diamond-open", "line": {"width": 2}},
        "hovertext": [
            text(f"measured {row['measured_step_seconds']:.4g} s, predicted {row['error']:+.1%}") for row in rows
        ],
        "hoverinfo": "text",
    }


def _efficiency(study: Study, rows: Sequence[Row]) -> Picture:
    percent = [row | {"efficiency": 100.0 * row["efficiency"]} for row in rows if "efficiency" in row]
    drawn = _lines(study, percent, "efficiency", "Efficiency", "%", measured=False)
    note = (
        "FLOP/s of a rank relative to the smallest point of its line."
        if study.study == "weak_scaling"
        else "Ranks × seconds of the smallest feasible point over those of each point; more than 100 % "
        "where the smallest is short of memory."
    )
    return replace(drawn, note=note)


def _to_target(study: Study, rows: Sequence[Row]) -> Picture:
    target = study.target
    assert target is not None
    days = [row | {"target_days": row["target_seconds"] / DAY} for row in rows]
    strong = study.study == "strong_scaling"
    drawn = _lines(study, days, "target_days", "Days to the target", "d", ideal=strong, measured=False)
    note = f"To train on {target.words}, without checkpoints, failures and restarts."
    return replace(drawn, note=note)


def heat_map(study: Study, rows: Sequence[Row]) -> Picture:
    """Draw the step over two varied keys."""
    across = study.horizontal
    down = next(key for key in study.varied if key != across)
    columns, lines = (list(dict.fromkeys(_place(label_of(row, key)) for row in rows)) for key in (across, down))
    cells: list[list[float | None]] = [[None] * len(columns) for _ in lines]
    for row in rows:
        at = columns.index(_place(label_of(row, across)))
        cells[lines.index(_place(label_of(row, down)))][at] = row["step_seconds"]
    few = len(columns) * len(lines) <= MAX_NUMBERED_CELLS
    numbers = {"texttemplate": "%{z:.4g}"} if few else {}
    return Picture(
        "Step time over both",
        "Darker is slower; empty cells are impossible.",
        [
            {
                "type": "heatmap",
                "x": [str(c) for c in columns],
                "y": [str(c) for c in lines],
                "z": cells,
                "colorscale": "Viridis",
                "reversescale": True,
                **numbers,
                "hoverongaps": False,
                "colorbar": {"title": {"text": "s"}},
            }
        ],
        {
            "xaxis": {"title": {"text": text(across)}, "type": "category", "automargin": True},
            "yaxis": {"title": {"text": text(down)}, "type": "category", "automargin": True},
        },
    )


def breakdown(study: Study, rows: Sequence[Row]) -> Picture:
    """Draw what each step is made of."""
    few = len(rows) <= MAX_BARS
    ordered = rows if few or study.study != "sweep" else best_first(rows, study.objective)
    shown = ordered[:MAX_BARS]
    names = [text(words_of(row, (*study.series, study.horizontal))) for row in shown]
    # points of weak scaling that differ in nothing else still differ in their model
    names = [
        name if names.count(name) == 1 else f"{name} ({row['point']})" for name, row in zip(names, shown, strict=True)
    ]
    data = [
        {
            "type": "bar",
            "name": part,
            "x": names,
            "y": [row.get(column, 0.0) for row in shown],
            "marker": {"color": colour},
            "hovertemplate": f"{part} %{{y:.4g}} s<extra></extra>",
        }
        for column, (part, colour) in PARTS.items()
        if any(row.get(column, 0.0) > 0 for row in shown)
    ]
    which = "first" if ordered is rows else "best"
    more = "" if few else f" The {which} {len(shown)} of {len(rows):,} points."
    shares = study.study == "strong_scaling"  # the smallest jobs would dwarf all others
    return Picture(
        "Where the step goes",
        f"Means over all ranks, predicted.{more}",
        data,
        {
            "barmode": "stack",
            "yaxis": {"title": {"text": "share of the step (%)" if shares else "seconds"}},
            **({"barnorm": "percent"} if shares else {}),
            "xaxis": {"type": "category", "automargin": True, "tickangle": -40},
            "height": 520,
        },
    )


def tornado(found: Sequence[Effect]) -> Picture:
    """Draw the change of the step for each parameter, the largest on top."""
    shown = [effect for effect in found if effect.swing_seconds > 0][:MAX_EFFECTS][::-1]
    base = found[0].base_seconds
    data = []
    for name, colour in (("low", BLUE), ("high", ORANGE)):
        seconds = [getattr(effect, f"{name}_seconds") for effect in shown]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": f"{name} value",
                "y": [text(e.parameter) for e in shown],
                "x": [100 * (s / base - 1) if s is not None else None for s in seconds],
                "base": 0,
                "marker": {"color": colour},
                "hovertext": [
                    text(f"{e.parameter} = {getattr(e, f'{name}_value')}: {s:.4g} s") if s is not None else ""
                    for e, s in zip(shown, seconds, strict=True)
                ],
                "hoverinfo": "text",
            }
        )
    still = sum(effect.swing_seconds == 0 for effect in found)
    note = f"Change of the step ({base:.4g} s) when one parameter is moved. {still} of {len(found)} change nothing."
    if fewer := len(found) - still - len(shown):
        note += f" {fewer} that change less than these are not drawn."
    return Picture(
        "Which parameter matters most",
        note,
        data,
        {
            "barmode": "overlay",
            "height": 120 + 24 * len(shown),
            "xaxis": {"title": {"text": "change of the step (%)"}, "zeroline": True, "zerolinecolor": "#444c56"},
            "yaxis": {"automargin": True, "type": "category"},
        },
    )


def _across(row: Row, key: str) -> Any:
    """Where a point lies: at the number itself, or at the name of what is none."""
    return row[key] if isinstance(row[key], int | float) else label_of(row, key)


def _axis(key: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return a category axis for words, a logarithmic one for numbers far apart."""
    title = {"title": {"text": text(key)}}
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return title | {"type": "category", "automargin": True}
    low, high = min(values), max(values)
    if low > 0 and high >= WIDE * low:
        ticks = sorted(set(values))
        if len(ticks) <= 16:
            return title | {"type": "log", "tickvals": ticks, "ticktext": [f"{t:,}" for t in ticks]}
        return title | {"type": "log"}
    return title


def _place(value: Any) -> Any:
    return text(value) if isinstance(value, str) else str(value) if isinstance(value, bool) else value


def _hover(study: Study, row: Mapping[str, Any]) -> str:
    grid = " × ".join(f"{axis} {size}" for axis, size in grid_of(dict(row)).items())
    varied = ", ".join(f"{key} {words_of(row, [key])}" for key in study.varied if key in row)
    lines = [
        varied,
        f"{row['step_seconds']:.4g} s, {format_amount(row['hardware_percent_of_peak'])} % of peak",
        f"{grid}, {row['micro_sequences']} sequences at a time",
    ]
    return "<br>".join(text(line) for line in lines)


def text(words: str) -> str:
    """Escape what plotly would read as markup.

    >>> text("<b>a</b> & b")
    '&lt;b&gt;a&lt;/b&gt; &amp; b'
    """
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
