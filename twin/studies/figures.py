"""Pictures of a study, as plain data for plotly: no plotting library is loaded to make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from twin.pages.picture import Picture
from twin.strategies import known_axes
from twin.studies.derived import Effect, Row, by_series, label_of, words_of
from twin.studies.description import Study
from twin.studies.lines import MAX_LINES, lines, place, text
from twin.studies.objective import best_first, feasible
from twin.trace.palette import BEYOND, BLUE, IDLE, KINDS, ORANGE, SLOWEST_DEVICE, axis_colour

PARTS = {
    "compute_seconds": ("compute", KINDS["compute"]),
    "slowest_device_wait_seconds": ("wait for the slowest device", SLOWEST_DEVICE),
    **{f"exposed_{axis}_seconds": (f"exposed {axis}", axis_colour(axis)) for axis in (*known_axes()[::-1], *BEYOND)},
    "idle_seconds": ("idle, peers waited for", IDLE),
}
"""What a step is made of, in the colours that axes have everywhere."""
MAX_BARS, MAX_EFFECTS, MAX_NUMBERED_CELLS = 60, 25, 200
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
        drawn.append(lines(study, done, "step_seconds", "Step time", "s", ideal=strong))
    if any("efficiency" in row for row in done):
        drawn.append(_efficiency(study, done))
    elif study.study == "sweep" and len(study.varied) == 2:
        drawn.append(heat_map(study, done))
    if study.target is not None and (able := [row for row in done if feasible(row)]):
        drawn.append(_to_target(study, able))
    drawn.append(breakdown(study, done))
    return drawn


def _efficiency(study: Study, rows: Sequence[Row]) -> Picture:
    percent = [row | {"efficiency": 100.0 * row["efficiency"]} for row in rows if "efficiency" in row]
    drawn = lines(study, percent, "efficiency", "Efficiency", "%", measured=False)
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
    drawn = lines(study, days, "target_days", "Days to the target", "d", ideal=strong, measured=False)
    note = f"To train on {target.words}, without checkpoints, failures and restarts."
    return replace(drawn, note=note)


def heat_map(study: Study, rows: Sequence[Row]) -> Picture:
    """Draw the step over two varied keys."""
    across = study.horizontal
    down = next(key for key in study.varied if key != across)
    columns, beside = (list(dict.fromkeys(place(label_of(row, key)) for row in rows)) for key in (across, down))
    cells: list[list[float | None]] = [[None] * len(columns) for _ in beside]
    for row in (row for row in rows if feasible(row)):
        at = columns.index(place(label_of(row, across)))
        cells[beside.index(place(label_of(row, down)))][at] = row["step_seconds"]
    few = len(columns) * len(beside) <= MAX_NUMBERED_CELLS
    numbers = {"texttemplate": "%{z:.4g}"} if few else {}
    return Picture(
        "Step time over both",
        "Darker is slower; empty cells are impossible or do not fit into memory.",
        [
            {
                "type": "heatmap",
                "x": [str(c) for c in columns],
                "y": [str(c) for c in beside],
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
    names = [
        text(words_of(row, (*study.series, study.horizontal))) + ("" if feasible(row) else ", does not fit")
        for row in shown
    ]
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
