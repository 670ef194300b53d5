"""Scaling: the points of a study, with measured ones and percentiles where it has them."""

from __future__ import annotations

import math
import statistics
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from dashboards.figures.scaling import MAX_DRAWN, drawn, height_of
from dashboards.page import Page, PageContext, Query
from dashboards.parts import card, graph, seconds, table, with_table
from dashboards.studies import Opened, study_of
from twin.description.problems import fail
from twin.studies.description import SCALING
from twin.studies.table import EFFECT_TITLES, GRID, Column, effect_cells, grid_of

DAY = 86400.0
ENDS = {"_joules": " (J)", "_percent_of_peak": " (%)"}
"""Units of columns, by how their keys end."""
SHARES = ("error", "change", "efficiency")
"""Columns of parts of one, which are shown in percent."""
MEGAWATT_HOUR = 3.6e9
TARGET = {
    "target_seconds": ("days", DAY, 2),
    "target_gpu_hours": ("GPU hours", 1.0, 0),
    "target_energy_joules": ("energy (MWh)", MEGAWATT_HOUR, 2),
    "target_limit_energy_joules": ("energy at the power limit (MWh)", MEGAWATT_HOUR, 2),
    "target_active_energy_joules": ("energy at active power (MWh)", MEGAWATT_HOUR, 2),
    "target_nodes_energy_joules": ("energy of nodes (MWh)", MEGAWATT_HOUR, 2),
    "target_facility_energy_joules": ("energy of the facility (MWh)", MEGAWATT_HOUR, 2),
    "target_carbon_kg": ("t CO2e", 1e3, 2),
    "target_energy_cost": ("", 1.0, 0),
    "target_cost": ("", 1.0, 0),
}
"""What it takes to reach a target: how it is called (money as the study does, with its currency), its unit, and the
digits behind the point of large figures; small ones have SIGNIFICANT digits all the same."""
SIGNIFICANT = 4
"""Digits, as many as a cell shows: of 0.0014 MWh two behind the point were none."""


def opened(context: PageContext, query: Query) -> Opened:
    """Read the study that an address names. Raises DescriptionError."""
    if "run" not in query:
        raise fail("run", "choose a study on the page Runs first; `fourfold study FILE --out DIR` writes one")
    return study_of(context.catalog, context.catalog.entry(query["run"]))


def shown(context: PageContext, query: Query) -> Component:
    """Show all pictures of a study, and its points."""
    found = opened(context, query)
    rows, columns = table_of(found)
    parts = [card(found.title, summary_of(found), *_facts(found))]
    for number, (title, note, figure) in enumerate(drawn(found)):
        effects = found.study.study == "sensitivity"
        twin = (
            table(f"scaling-table-{number}", effect_rows(found), height=height_of(figure, 14))
            if effects
            else table(f"scaling-table-{number}", rows, columns, height=440)
        )
        parts.append(
            card(
                title,
                note if note != title else "",
                with_table(
                    graph(
                        f"scaling-{number}", figure, label=f"{title}. {note}", height=height_of(figure, len(found.rows))
                    ),
                    twin,
                ),
            )
        )
    if target := target_rows(found):
        parts.append(
            card(
                "To the target",
                "What it takes to train on the target's tokens, whole steps, without "
                "checkpoints, failures and restarts.",
                table("target", target, height=320),
            )
        )
    parts.append(card("All points", _listed(found), table("points", rows, columns, height=420)))
    return html.Div(parts)


def summary_of(found: Opened) -> str:
    """Say in a sentence what the study found."""
    study, done = found.study, found.done
    words = f"{study.study.replace('_', ' ').capitalize()}: {len(done):,} of {len(found.rows):,} points are possible"
    unfit = sum("step_seconds" in row for row in found.rows) - len(done)
    words += f"; {unfit:,} more do not fit into memory." if unfit else "."
    if not done and study.study != "sensitivity":
        return words
    if study.study == "sensitivity":
        first = next(iter(found.effects), None)
        return (
            words
            if first is None
            else (
                f"{words} What matters most: {first.parameter}, "
                f"{100 * first.swing_seconds / first.base_seconds:.1f} % of the step of {seconds(first.base_seconds)}."
            )
        )
    if study.study in SCALING:
        last = max(done, key=lambda row: row["ranks"])
        share = last.get("efficiency")
        words += f" Largest: {last['ranks']:,} ranks, {seconds(last['step_seconds'])}"
        words += "." if share is None else f", {100 * share:.0f} % efficient."
    else:
        best = min(done, key=lambda row: row["step_seconds"])
        words += (
            f" Fastest: {seconds(best['step_seconds'])} with "
            + ", ".join(f"{key} {_said(best[key])}" for key in study.varied if key in best)
            + "."
        )
    errors = [abs(row["error"]) for row in found.rows if isinstance(row.get("error"), float)]
    if errors:
        middle = f"{100 * statistics.median(errors):.1f} %."
        many = f"{len(errors)} measured points the median error is"
        words += f" Against {many if len(errors) > 1 else 'one measured point the error is'} {middle}"
    return words


def _said(value: Any) -> str:
    return f"{value:,}" if type(value) is int else str(value)


def _listed(found: Opened) -> str:
    whole, most = len(found.rows), MAX_DRAWN
    words = f"{whole:,} points" if whole <= most else f"The first {most:,} of {whole:,} points, drawn and listed"
    return f"{words}; impossible ones with the reason."


def _facts(found: Opened) -> list[Component]:
    sources = list(dict.fromkeys(str(row["measured_source"]) for row in found.rows if row.get("measured_source")))
    said = [f"Measured: {', '.join(sources[:5])}."] if sources else []
    if found.study.seeds > 1:
        draws = found.study.seeds
        said.append(
            f"Figures of a point are those of the draw of median step of {draws}; bands: from the 10th to the "
            "90th percentile over them."
        )
    return [dmc.Text(" ".join(said), size="sm")] if said else []


def table_of(found: Opened) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All points as rows with plain values, and the columns in the order of the study's own table."""
    first = [column.key for column in found.columns if column.key not in (GRID, "reason", "grid")]
    rows: list[dict[str, Any]] = []
    for row in found.rows[:MAX_DRAWN]:
        one = {key: _written(key, row.get(key)) for key in first}
        one["grid"] = " × ".join(str(size) for size in grid_of(row).values())
        one["reason"] = row["reason"]
        rows.append(one)
    keys = [*first, "grid", "reason"]
    # the names of columns hold dots, which the table would take for a path
    renamed = [{str(n): row[key] for n, key in enumerate(keys)} for row in rows]
    titles = {column.key: heading(column) for column in found.columns} | {"grid": "grid", "reason": "why not"}
    return renamed, [{"field": str(n), "headerName": titles.get(key, key)} for n, key in enumerate(keys)]


def heading(column: Column) -> str:
    """Name a column of points as the study's own table does, with the unit of what it holds.

    >>> heading(Column("step_seconds_p10", "p10")), heading(Column("target_seconds", "days"))
    ('p10 (s)', 'days')
    >>> heading(Column("error", "error"))
    'error (%)'
    """
    key, title = column.key, column.title
    if key in TARGET:
        return TARGET[key][0] or title
    if key in SHARES:
        return f"{title} (%)"
    if "_seconds" in key:
        return f"{title} (s)"
    return title + next((unit for end, unit in ENDS.items() if key.endswith(end)), "")


def _written(key: str, value: Any) -> Any:
    """Bring shares to percent, and what a target takes to the unit of its heading."""
    if key in SHARES:
        return _in_percent(value)
    if key in TARGET and isinstance(value, int | float) and not isinstance(value, bool):
        _, unit, digits = TARGET[key]
        return _rounded(value / unit, digits)
    return value


def _rounded(value: float, digits: int) -> float:
    """Round to so many digits behind the point, or to more where SIGNIFICANT ones need them.

    >>> _rounded(0.00140149, 2), _rounded(9.6, 0), _rounded(12345.67, 0), _rounded(55.5, 2)
    (0.001401, 9.6, 12346.0, 55.5)
    """
    return value and round(value, max(digits, SIGNIFICANT - 1 - math.floor(math.log10(abs(value)))))


def _in_percent(value: Any) -> Any:
    """Bring a share to percent, one digit behind the point; words of strangers stay words."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return round(100.0 * value, 1) + 0.0 if number else value  # adding 0 takes the sign of -0 away


def target_rows(found: Opened) -> list[dict[str, Any]]:
    """What each point takes to reach the target; none without one."""
    if found.study.target is None:
        return []
    titles = {column.key: heading(column) for column in found.columns if column.key in TARGET}
    return [
        {
            "point": ", ".join(f"{key.replace('.', ' ')} {row[key]}" for key in found.study.varied if key in row),
            **{title: _written(key, row[key]) for key, title in titles.items() if row.get(key) is not None},
        }
        for row in found.done
    ]


def effect_rows(found: Opened) -> list[dict[str, Any]]:
    """Effects of a sensitivity study, the largest first."""
    return [dict(zip(EFFECT_TITLES, effect_cells(effect), strict=True)) for effect in found.effects]


PAGE = Page("/scaling", "Scaling", shown, needs="run", kinds=("study",), runs=1)
