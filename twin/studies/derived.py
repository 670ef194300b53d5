"""What follows from the points of a study: rows, efficiency, time and cost to a target, effects.

* Strong scaling, from the smallest feasible point of a series: speed-up t₀/t, and efficiency
  (t₀·ranks₀)/(t·ranks).
* Weak scaling: efficiency is FLOP/s per rank relative to the smallest point, as the authors of the
  4D algorithm state it, for the work grows only nearly as the ranks do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twin.studies.description import SCALING, Study, Target
from twin.studies.measured import measured_columns, own_measured
from twin.studies.objective import feasible
from twin.studies.points import Label
from twin.studies.run import StudyRun

Row = dict[str, Any]
NAMED = "_label"
"""Ends the column that keeps how a value is named, where that is not the value itself."""


def rows_of(run: StudyRun) -> list[Row]:
    """One flat row for each point: what varies, status, figures, and what follows from them."""
    study = run.loaded.study
    known = {key for answer in run.answers.values() for key in answer["figures"]}
    rows, measured = [], own_measured(study.measured, run.points)
    for point in run.points:
        answer = run.answers[point.number]
        figures = answer["figures"]
        row: Row = {"point": point.number, **point.labels, "status": answer["status"], "reason": answer["reason"]}
        for key in known & point.labels.keys():
            # `{small: 64}` names a value; what follows from the point needs the value itself
            value = figures.get(key, point.values.get(key))
            if isinstance(value, Label) and value != row[key]:
                row |= {f"{key}{NAMED}": row[key], key: value}
        row |= {key: value for key, value in figures.items() if key not in row}
        if figures:
            row |= measured_columns(measured, point, figures)
            if study.target is not None and feasible(row):
                row |= to_target(study.target, figures)
        rows.append(row)
    if study.study in SCALING:
        for series in by_series(study, rows).values():
            add_efficiency(series, weak=study.study == "weak_scaling")
    if study.study == "sweep" and study.horizontal == "name" and "step_seconds" in rows[0]:
        for row in (r for r in rows if "step_seconds" in r):
            row["change"] = row["step_seconds"] / rows[0]["step_seconds"] - 1.0
    return rows


def label_of(row: Mapping[str, Any], key: str) -> Any:
    """Return how the value of a varied key is called; empty if the row has none.

    >>> label_of({"ranks": 64, "ranks_label": "small"}, "ranks"), label_of({"ranks": 64}, "ranks")
    ('small', 64)
    """
    return row.get(f"{key}{NAMED}", row.get(key, ""))


def words_of(row: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Name a point by the values of some keys, as a picture does.

    >>> words_of({"machine": "frontier", "ranks": 8192, "full": True}, ("machine", "ranks", "full"))
    'frontier, 8,192, True'
    """
    values = [label_of(row, key) for key in keys]
    return ", ".join(f"{value:,}" if type(value) is int else str(value) for value in values)


def by_series(study: Study, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by what tells lines of a picture apart, in the order of the file."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(words_of(row, study.series), []).append(row)
    return found


def add_efficiency(series: Sequence[Row], *, weak: bool) -> None:
    """Add `efficiency` (and `speedup`) to the rows of one series that can run: what does not fit is no measure.

    Over the fastest with the fewest ranks; nothing where all have as many, for they say nothing of scaling.
    """
    done = sorted((row for row in series if feasible(row)), key=lambda row: (row["ranks"], row["step_seconds"]))
    if len({row["ranks"] for row in done}) < 2:
        return
    first = done[0]
    for row in done:
        ranks, speedup = row["ranks"] / first["ranks"], first["step_seconds"] / row["step_seconds"]
        if weak:
            rate = row["hardware_flops_per_second"] / first["hardware_flops_per_second"]
            row["efficiency"] = rate / ranks
        else:
            row["speedup"] = speedup
            row["efficiency"] = speedup / ranks


def to_target(target: Target, figures: Row) -> Row:
    """Return what it takes to train on the target's tokens, in whole steps."""
    steps = math.ceil(target.tokens_of(figures.get("parameters", 0)) / figures["tokens_per_step"])
    seconds = steps * figures["step_seconds"]
    hours = seconds / 3600.0 * figures["ranks"]
    row: Row = {"target_steps": steps, "target_seconds": seconds, "target_gpu_hours": hours}
    # joules at devices' power limit are no joules by kind of work, which are a tenth less
    drawn = "target_energy_joules" if "energy_mean_watts" in figures else "target_limit_energy_joules"
    row[drawn] = steps * figures["energy_joules"]
    if (watts := figures.get("energy_active_watts_per_device")) is not None:
        row["target_active_energy_joules"] = watts * figures["ranks"] * seconds
    for boundary in ("nodes", "facility"):
        if (joules := figures.get(f"energy_{boundary}_joules")) is not None:
            row[f"target_{boundary}_energy_joules"] = steps * joules
    if (grams := figures.get("energy_carbon_kg")) is not None:
        row["target_carbon_kg"] = steps * grams
    if (cost := figures.get("energy_cost")) is not None:
        row["target_energy_cost"] = steps * cost
    if target.price_per_gpu_hour is not None:
        row["target_cost"] = hours * target.price_per_gpu_hour
    return row


@dataclass(frozen=True)
class Effect:
    """What moving one parameter does to the step."""

    parameter: str
    low_value: str
    high_value: str
    low_seconds: float | None
    """Step with the lower value; None if that job was refused or not moved."""
    high_seconds: float | None
    base_seconds: float

    @property
    def swing_seconds(self) -> float:
        """Length of the bar: from the fastest to the slowest of base, low and high."""
        known = [s for s in (self.low_seconds, self.high_seconds, self.base_seconds) if s is not None]
        return max(known) - min(known)


def effects(rows: Sequence[Row]) -> list[Effect]:
    """Effects of a sensitivity study, the largest first."""
    base = rows[0].get("step_seconds")
    if base is None:
        return []
    sides: dict[str, dict[str, Row]] = {}
    for row in rows[1:]:
        sides.setdefault(row["parameter"], {})[row["side"]] = row
    found = []
    for parameter, moved in sides.items():
        low, high = moved.get("low", {}), moved.get("high", {})
        found.append(
            Effect(
                parameter,
                low.get("value", ""),
                high.get("value", ""),
                low.get("step_seconds"),
                high.get("step_seconds"),
                base,
            )
        )
    return sorted(found, key=lambda effect: (-effect.swing_seconds, effect.parameter))
