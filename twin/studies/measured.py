"""Measured points to show beside predicted ones: published runs, or those of the study file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from twin.description.job import Job
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
        if isinstance(one, Measured) and all(
            key in point.labels and point.labels[key] in (value, label(value)) for key, value in one.at.items()
        ):
            return _columns(one.step_seconds, one.source, one.note, figures)
    return {}


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
