"""Measured points to show beside predicted ones: published runs, or those of the study file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from twin.description.job import Job
from twin.description.problems import DescriptionError, Problem, did_you_mean
from twin.description.train import Train
from twin.strategies import load_job
from twin.studies.description import Measured
from twin.studies.points import Point, label
from twin.validate.published import SEQUENCES, published_job, runs

SEQUENCE = 2048
"""Tokens of a sequence in the published runs."""


def measured_columns(
    measured: Literal["published"] | Mapping[int, Measured], point: Point, figures: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the columns of the measured point that belongs to a predicted one, if there is one."""
    if isinstance(measured, str):
        return _published(point, figures)
    one = measured.get(point.number)
    return {} if one is None else _columns(one.step_seconds, one.source, one.note, figures)


def own_measured(
    measured: Literal["published"] | Sequence[Measured], points: Sequence[Point]
) -> Literal["published"] | dict[int, Measured]:
    """Return the measured points of a study by the number of the point that each is.

    Raises DescriptionError for one that names none of the points, or several.
    """
    if isinstance(measured, str):
        return measured
    problems: list[Problem] = []
    taken: dict[int, int] = {}
    varied = list(dict.fromkeys(key for point in points for key in point.labels))
    for number, one in enumerate(measured):
        where, unknown = f"measured.{number}.at", [key for key in one.at if key not in varied]
        if unknown:
            for key in unknown:
                hint = did_you_mean(key, varied) if varied else "nothing does"
                problems.append(Problem(f"{where}.{key}", f"is no key that varies; {hint}", one.at[key]))
            continue
        found = [point for point in points if all(_has(point, key, value) for key, value in one.at.items())]
        whole = [point for point in found if set(point.labels) == set(one.at)]
        found = whole if len(whole) == 1 else found
        if len(found) != 1:
            problems.append(Problem(where, f"{_count(found)}{_remedy(one, points, found, varied)}", one.at))
        elif (point := found[0].number) in taken:
            problems.append(Problem(where, f"names the point of measured.{taken[point]}; give one of them", one.at))
        else:
            taken[point] = number
    if problems:
        raise DescriptionError(problems)
    return {point: measured[number] for point, number in taken.items()}


def _has(point: Point, key: str, value: Any) -> bool:
    """Tell whether a point has this value of a key, or one that is called so."""
    return key in point.labels and (point.labels[key] in (value, label(value)) or point.values.get(key) == value)


def _count(found: Sequence[Point]) -> str:
    return f"is {len(found) or 'none'} of the study's points, not one"


def _remedy(one: Measured, points: Sequence[Point], found: Sequence[Point], varied: Sequence[str]) -> str:
    if found:
        rest = [key for key in varied if key not in one.at]
        return f"; name it by {', '.join(rest)} too" if rest else "; these are equal"
    there = {key: list(dict.fromkeys(str(p.labels[key]) for p in points if key in p.labels)) for key in one.at}
    return "; there are " + "; ".join(f"{key}: {', '.join(values[:8])}" for key, values in there.items())


def _published(point: Point, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Find the published run of which a point is the job: none if anything but its grid differs."""
    data = runs()
    for run in data["weak_scaling"]:
        same = all(run[key] == figures[key] for key in ("machine", "model", "ranks"))
        if (
            same
            and figures["tokens_per_step"] == SEQUENCES * SEQUENCE
            and _alike(load_job(point.raw)) == _alike(published_job(run))
        ):
            rate = {"measured_hardware_flops_per_second": run["petaflops"] * 1e15}
            return rate | _columns(run["seconds"], data["source"], run.get("note", ""), figures)
    return {}


def _alike(job: Job) -> Job:
    """Leave out of a job what a published run may differ in and still be the same run."""
    batch = job.batch.model_copy(update={"micro_sequences": "auto"})
    same = {"grid": "auto", "batch": batch, "seed": 0, "name": "", "train": Train()}
    if "published" in type(job).model_fields:  # what goes beyond the published algorithm has keys of its own
        same["published"] = True
    return job.model_copy(update=same)


def _columns(seconds: float, source: str, note: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "measured_step_seconds": seconds,
        "error": figures["step_seconds"] / seconds - 1.0,
        "measured_source": source,
        **({"measured_note": note} if note else {}),
    }
