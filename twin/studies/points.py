"""The points of a study: every job that it asks about, still as mappings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from twin.description.paths import with_absolute_paths
from twin.description.problems import DescriptionError, Problem, fail
from twin.search.choose import choose
from twin.strategies import load_job, strategy_of
from twin.studies.compute import settled
from twin.studies.description import MAX_POINTS, LoadedStudy, apply
from twin.studies.formulas import worked_out
from twin.studies.sensitivity import levers

Label = str | int | float | bool


@dataclass(frozen=True)
class Point:
    """One job of a study."""

    number: int
    """From 1, in the order of the file."""
    labels: dict[str, Label]
    """Varied keys and their values as they are shown."""
    values: dict[str, Any]
    """Varied keys and their values as they are set."""
    raw: dict[str, Any]
    """The job, ready for `load_job`."""
    refusal: str = ""
    """Why there is no such job, where a formula of the study has no value."""


def points_of(loaded: LoadedStudy, folder: Path) -> list[Point]:
    """Return the points of a study: each of `points` combined with every combination of `vary`.

    Raises DescriptionError if there are too many, or if a key is none of a job.
    """
    study = loaded.study
    if study.study == "sensitivity":
        return sensitivity_points(loaded, folder)
    rows: list[dict[str, tuple[Label, Any]]] = [
        {key: (label(value), value) for key, value in row.items()} for row in study.points
    ] or [{}]
    choices = [[(key, shown, value) for shown, value in _choices(values)] for key, values in study.vary.items()]
    lengths = [len(rows), *map(len, choices)]
    if (count := math.prod(lengths)) > MAX_POINTS:
        sizes = " × ".join(str(length) for length in lengths if length > 1)
        raise fail(
            "vary",
            f"makes {count:,} points ({sizes}), more than the {MAX_POINTS:,} of one study; vary fewer keys or values",
        )
    points: list[Point] = []
    own = study.own_factors
    for row in rows:
        for combination in itertools.product(*choices):
            cells = row | {key: (shown, value) for key, shown, value in combination}
            values = {key: value for key, (_, value) in cells.items()}
            derived, refusal = worked_out(study.formulas, values, loaded.base)
            settings = {key: value for key, value in values.items() if key not in own} | derived
            raw = with_values(loaded.base, settings, folder, "vary")
            labels = {key: shown for key, (shown, _) in cells.items()}
            points.append(Point(len(points) + 1, labels, settings, raw, refusal))
    check_keys(points)
    return points


def sensitivity_points(loaded: LoadedStudy, folder: Path) -> list[Point]:
    """Return the base job, and each parameter at its lower and at its upper value.

    The grid is settled once, on the base job, unless the study asks for one at each point.
    """
    study = loaded.study
    job = load_job(loaded.base)
    strategy_of(job)  # one that is left open is refused: its levers are not known
    base = loaded.base
    if not job.is_concrete and study.grid != "auto":
        base = base | settled(choose(job).best.job)
    points = [Point(1, {"parameter": "", "side": "base", "value": ""}, {}, base)]
    for lever in levers(job, study.parameters, study.change, draws=study.engine == "ranks"):
        for side in lever.sides:
            raw = with_values(base, side.settings, folder, "parameters")
            labels: dict[str, Label] = {"parameter": lever.key, "side": side.name, "value": side.shown}
            points.append(Point(len(points) + 1, labels, side.settings, raw))
    check_keys(points)
    return points


def with_values(base: Mapping[str, Any], values: Mapping[str, Any], folder: Path, where: str) -> dict[str, Any]:
    """Set keys of a job, outer keys first: a machine is named before its parts are changed."""
    raw = dict(base)
    for key in sorted(values, key=lambda k: k.count(".")):
        raw = apply(raw, key, values[key], where)
    return with_absolute_paths(raw, folder)


def _choices(values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Label, Any]]:
    if isinstance(values, Mapping):
        return list(values.items())
    return [(label(value), value) for value in values]


def label(value: Any) -> Label:
    """Show a value in one line; numbers and text stay what they are, and what is no finite number becomes text.

    >>> label({"data": 2, "z": 4}), label(8), label(None), label(math.inf)
    ('{data: 2, z: 4}', 8, 'none', 'inf')
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Label):
        return value
    if value is None:
        return "none"
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return text.strip().removesuffix("...").strip()


def check_keys(points: Sequence[Point]) -> None:
    """Refuse a study that varies a key which no job has; values are checked point by point.

    Of the points, those are looked at which bring a key for the first time; what a formula may spoil is no
    unknown key.
    """
    seen: set[str] = set()
    problems: dict[str, Problem] = {}
    for point in points:
        new = set(point.values) - seen
        if not new:
            continue
        seen |= new
        try:
            load_job(point.raw)
        except DescriptionError as error:
            for problem in error.problems:
                if problem.message.startswith("unknown key"):
                    problems.setdefault(problem.path, problem)
    if problems:
        raise DescriptionError(list(problems.values()))
