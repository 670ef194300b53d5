"""Lines of a study's pictures: one for each series, over what varies, with what was measured beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twin.description.units import format_amount
from twin.pages.picture import Picture
from twin.pages.ticks import log_ticks
from twin.studies.derived import Row, by_series, label_of, words_of
from twin.studies.description import Study
from twin.studies.objective import feasible
from twin.studies.table import grid_of
from twin.trace.palette import BLUE, DARK_GREY, GREEN, LIGHT_GREY, ORANGE, PURPLE, SKY, VERMILION

SERIES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, DARK_GREY, LIGHT_GREY)
"""Lines of a picture, one after the other; they stand for no axis."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x", "star", "cross")
MAX_LINES = 24
"""More cannot be told apart."""
WIDE = 4.0
"""Numbers whose largest is so many times the smallest are drawn on a logarithmic axis."""


def lines(
    study: Study, rows: Sequence[Row], column: str, title: str, unit: str, *, ideal: bool = False, measured: bool = True
) -> Picture:
    """Draw one line for each series; measured points hollow, ideal strong scaling dotted."""
    series = by_series(study, rows)
    data: list[dict[str, Any]] = []
    beside = crossed = False
    for number, (name, members) in enumerate(list(series.items())[:MAX_LINES]):
        colour, symbol = (SERIES[number % len(SERIES)], SYMBOLS[number // len(SERIES) % len(SYMBOLS)])
        x = [across(row, study.horizontal) for row in members]
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
        if unfit := [row for row in members if not feasible(row)]:
            crossed = True
            data.append(_crosses(study, unfit, column))
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
    if crossed:
        note = f"{note} Crossed: does not fit into memory.".strip()
    layout = {
        "xaxis": _axis(study.horizontal, [across(row, study.horizontal) for row in rows]),
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
        "x": [place(v) for v in x],
        "y": list(y),
        "line": {"color": colour},
        "marker": {"color": colour, "size": 8, "symbol": symbol},
        "hovertext": list(hover),
        "hoverinfo": "text",
    }


def _crosses(study: Study, rows: Sequence[Row], column: str) -> dict[str, Any]:
    """Cross out points that do not fit into memory: their time is worked out all the same."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "does not fit",
        "showlegend": False,
        "x": [place(across(row, study.horizontal)) for row in rows],
        "y": [row.get(f"{column}_p50", row[column]) for row in rows],
        "marker": {"color": DARK_GREY, "size": 13, "symbol": "x-thin-open", "line": {"width": 2}},
        "hoverinfo": "skip",
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
        "x": [place(across(row, study.horizontal)) for row in rows],
        "y": [row["measured_step_seconds"] for row in rows],
        "marker": {"color": colour, "size": 11, "symbol": "diamond-open", "line": {"width": 2}},
        "hovertext": [
            text(f"measured {row['measured_step_seconds']:.4g} s, predicted {row['error']:+.1%}") for row in rows
        ],
        "hoverinfo": "text",
    }


def across(row: Row, key: str) -> Any:
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


def place(value: Any) -> Any:
    """Return a value as an axis takes it: words escaped, true and false as words."""
    return text(value) if isinstance(value, str) else str(value) if isinstance(value, bool) else value


def _hover(study: Study, row: Mapping[str, Any]) -> str:
    grid = " × ".join(f"{axis} {size}" for axis, size in grid_of(dict(row)).items())
    varied = ", ".join(f"{key} {words_of(row, [key])}" for key in study.varied if key in row)
    said = [
        varied if feasible(row) else f"{varied}: does not fit into memory",
        f"{row['step_seconds']:.4g} s, {format_amount(row['hardware_percent_of_peak'])} % of peak",
        f"{grid}, {row['micro_sequences']} sequences at a time",
    ]
    return "<br>".join(text(line) for line in said)


def text(words: str) -> str:
    """Escape what plotly would read as markup.

    >>> text("<b>a</b> & b")
    '&lt;b&gt;a&lt;/b&gt; &amp; b'
    """
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
