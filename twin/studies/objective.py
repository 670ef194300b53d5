"""What a study is to make best, and what a point counts that cannot run.

Every objective is a step's time, a rate per step, or has nothing to do with time, so that a measured time gives a
measured objective.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

ObjectiveName = Literal[
    "step_seconds",
    "tokens_per_second",
    "hardware_percent_of_peak",
    "model_percent_of_peak",
    "parameters",
    "energy_joules_per_token",
]
AnyRow = TypeVar("AnyRow", bound=Mapping[str, Any])
OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)


TIMELESS: frozenset[ObjectiveName] = frozenset(("parameters", "energy_joules_per_token"))
"""Objectives that a measured time says nothing of."""


def is_rate(objective: ObjectiveName) -> bool:
    """Tell whether more is better: of all but the step's time and the energy of a token."""
    return objective not in {"step_seconds", "energy_joules_per_token"}


def feasible(row: Mapping[str, Any]) -> bool:
    """Tell whether a point breaks no rule and fits into memory."""
    return row["status"] == "done" and bool(row.get("memory_fits", True))


def without(rows: Iterable[AnyRow], objective: ObjectiveName) -> list[AnyRow]:
    """Return the points that can run and have no such objective: what their devices draw is not known."""
    return [row for row in rows if feasible(row) and row.get(objective) is None]


def penalty(values: Sequence[float], objective: ObjectiveName) -> float:
    """Return what a point counts that cannot run: the worst of those that can.

    As the configuration search of arXiv 2312.12705, whose optimizer takes the worst observed value for a failure.
    """
    return min(values) if is_rate(objective) else max(values)


def best_first(rows: Sequence[AnyRow], objective: ObjectiveName) -> list[AnyRow]:
    """Return the points that can run, best first; equal ones in the order of the study."""
    sign = -1.0 if is_rate(objective) else 1.0
    known = (row for row in rows if feasible(row) and row.get(objective) is not None)
    return sorted(known, key=lambda row: sign * row[objective])


def at_seconds(predicted: float, predicted_seconds: float, seconds: float, objective: ObjectiveName) -> float:
    """Return the objective of a point whose step takes other seconds than predicted.

    >>> at_seconds(40.0, 10.0, 20.0, "hardware_percent_of_peak"), at_seconds(10.0, 10.0, 20.0, "step_seconds")
    (20.0, 20.0)
    """
    if objective in TIMELESS:
        return predicted
    return predicted * predicted_seconds / seconds if is_rate(objective) else seconds
