"""The table of a study for people: which columns, and how a figure is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from twin.description.units import format_amount, format_si
from twin.studies.derived import Effect, Row, label_of
from twin.studies.description import Study

DAY = 86400.0


@dataclass(frozen=True)
class Column:
    """A column: the key of a row, its title, and how its value is shown."""

    key: str
    title: str
    show: Callable[[Any], str] = str


@dataclass(frozen=True)
class Table:
    """A table of points."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else format_si(value, "s").replace(" us", " µs")


def _megawatt_hours(joules: float) -> str:
    return f"{format_amount(joules / 3.6e9)} MWh"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.1%}"  # adding 0 takes the sign of -0 away


FIGURES = (
    Column("step_seconds", "step", _seconds),
    Column("measured_step_seconds", "measured", _seconds),
    Column("error", "error", _signed),
    Column("change", "change", _signed),
    Column("step_seconds_p10", "p10", _seconds),
    Column("step_seconds_p50", "p50", _seconds),
    Column("step_seconds_p90", "p90", _seconds),
    Column("exposed_communication_seconds", "exposed", _seconds),
    Column("hardware_percent_of_peak", "of peak", lambda v: f"{format_amount(v)} %"),
    Column("speedup", "speed-up", lambda v: f"{v:.2f}"),
    Column("efficiency", "efficiency", _percent),
)
BEST = "Best"
"""Title of the table of the best points of a sweep over several factors."""
GRID = "grid_"
"""What keys of sizes of axes begin with."""
OBJECTIVES = (
    Column("model_percent_of_peak", "MFU", lambda v: f"{format_amount(v)} %"),
    Column("tokens_per_second", "tokens/s", lambda v: format_amount(v, 0)),
    Column("parameters", "parameters", lambda v: f"{v / 1e9:,.2f}e9"),
    Column("energy_joules_per_token", "J a token", lambda v: f"{v:,.3g}"),
)
"""Shown where they are a study's objective."""
TO_TARGET = (
    Column("target_seconds", "days", lambda v: format_amount(v / DAY)),
    Column("target_gpu_hours", "GPU hours", lambda v: format_amount(v, 0)),
    Column("target_energy_joules", "energy", _megawatt_hours),
    Column("target_limit_energy_joules", "energy at the power limit", _megawatt_hours),
    Column("target_active_energy_joules", "energy at active power", _megawatt_hours),
    Column("target_nodes_energy_joules", "energy of nodes", _megawatt_hours),
    Column("target_facility_energy_joules", "energy of the facility", _megawatt_hours),
    Column("target_carbon_kg", "t CO2e", lambda v: format_amount(v / 1e3)),
    Column("target_energy_cost", "cost of energy", lambda v: format_amount(v, 0)),
    Column("target_cost", "cost", lambda v: format_amount(v, 0)),
)


def columns_of(study: Study, rows: Sequence[Row]) -> list[Column]:
    """Return the columns that a study's first table needs: those that have a value in some row."""
    varied = study.varied
    if study.study == "sensitivity":
        varied = ("parameter", "side", "value")
    elif study.horizontal == "name":
        varied = ("name",)
    columns = [Column("point", "point"), *(Column(key, key, _plain) for key in varied)]
    wanted = (*FIGURES, *(column for column in OBJECTIVES if column.key == study.objective))
    columns += [column for column in wanted if any(column.key in row for row in rows)]
    grids = [grid for row in rows if (grid := grid_of(row))]
    if "grid" not in varied and grids:
        columns.append(Column(GRID, " × ".join(grids[0])))
    if any(row["reason"] for row in rows):
        columns.append(Column("reason", "why not"))
    return columns


def grid_of(row: Row) -> dict[str, int]:
    """Return the sizes of a row's axes, outermost first; none if the row has no grid."""
    return {key.removeprefix(GRID): row[key] for key in row if key.startswith(GRID) and row[key] is not None}


def target_columns(study: Study, rows: Sequence[Row]) -> list[Column]:
    """Return the columns of what a target takes, those that some row has; none without one."""
    target = study.target
    if target is None:
        return []
    known = [column for column in TO_TARGET if any(row.get(column.key) is not None for row in rows)]
    currencies = {row["energy_currency"] for row in rows if row.get("energy_currency")}  # of the jobs' own prices
    titles = {"target_cost": f"cost, {target.currency}"}
    if len(currencies) == 1:
        titles["target_energy_cost"] = f"cost of energy, {currencies.pop()}"
    return [replace(column, title=titles.get(column.key, column.title)) for column in known]


def cell(column: Column, row: Row) -> str:
    """Return what stands in one cell; empty if the row has no such figure."""
    if column.key == GRID:
        return " × ".join(str(size) for size in grid_of(row).values())
    value = label_of(row, column.key)
    return "" if value is None or value == "" else column.show(value)


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


EFFECT_TITLES = ("parameter", "low value", "high value", "step low", "step high", "swing")


def effect_cells(effect: Effect) -> tuple[str, ...]:
    """Return one line of the table of effects."""
    return (
        effect.parameter,
        effect.low_value,
        effect.high_value,
        *("" if s is None else _seconds(s) for s in (effect.low_seconds, effect.high_seconds)),
        f"{effect.swing_seconds / effect.base_seconds:.1%}",
    )
