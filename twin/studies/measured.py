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
    measured: Literal["published"] | Sequence[Measured], point: Point, figures: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the columns of the measured point that belongs to a predicted one, if there is one."""
    if measured == "published":
        return _published(point, figures)
    for one in measured:
        if isinstance(one, Measured) and _is_at(one, point):
            return _columns(one.step_seconds, one.source, one.note, figures)
    return {}


def check_measured(measured: Literal["published"] | Sequence[Measured], points: Sequence[Point]) -> None:
    """Refuse a measured point of a study that names none of its points, or several: DescriptionError names it."""
    problems: list[Problem] = []
    taken: dict[int, int] = {}
    varied = list(dict.fromkeys(key for point in points for key in point.labels))
    for number, one in enumerate(measured if not isinstance(measured, str) else ()):
        where, unknown = f"measured.{number}.at", [key for key in one.at if key not in varied]
        if unknown:
            for key in unknown:
                hint = did_you_mean(key, varied) if varied else "nothing does"
                problems.append(Problem(f"{where}.{key}", f"is no key that varies; {hint}", one.at[key]))
            continue
        found = [point.number for point in points if _is_at(one, point)]
        if len(found) != 1:
            several = f"; name it by {', '.join(key for key in varied if key not in one.at)} too" if found else ""
            problems.append(
                Problem(where, f"is {len(found) or 'none'} of the study's points, not one{several}", one.at)
            )
        elif found[0] in taken:
            problems.append(Problem(where, f"names the point of measured.{taken[found[0]]}; give one of them", one.at))
        else:
            taken[found[0]] = number
    if problems:
        raise DescriptionError(problems)


def _is_at(one: Measured, point: Point) -> bool:
    return all(key in point.labels and point.labels[key] in (value, label(value)) for key, value in one.at.items())


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
