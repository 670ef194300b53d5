"""Whether two runs are of the same job, read off their manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError, create_model

from twin.description.grid import Grid
from twin.description.job import Job
from twin.description.problems import DescriptionError, Problem, from_pydantic
from twin.description.spec import Spec

MAY_DIFFER = {"name", "machine", "train", "seed", "library", "slowest_device", "stragglers"}
"""What changes how long a job's ops take, not which ops it has."""
MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Work:
    """The part of a job that decides what its ranks do."""

    grid: Grid
    keys: dict[str, Any]
    """Every key below `job` with its value, defaults filled in."""


_Model = create_model(  # type: ignore[call-overload]  # fields are taken over as they are
    "Job",
    __base__=Spec,
    **{key: (field.annotation, field) for key, field in Job.model_fields.items() if key not in MAY_DIFFER},
)


def work_of(manifest: Mapping[str, Any], origin: str) -> Work:
    """Read what a run's ranks did; keys that are younger than the run have their defaults."""
    job = manifest.get("job")
    if not isinstance(job, dict):
        raise DescriptionError([Problem("job", "is missing, or no mapping")], origin)
    try:
        work = _Model.model_validate({k: v for k, v in job.items() if k not in MAY_DIFFER})
    except ValidationError as error:
        raise DescriptionError(from_pydantic(error, _Model, "job"), origin) from None
    if not isinstance(work.grid, Grid) or work.ranks != work.grid.ranks:
        raise DescriptionError([Problem("job.grid", f"is not one of {work.ranks} ranks", str(work.grid))], origin)
    if work.ranks > MOST_RANKS:
        raise DescriptionError([Problem("job.ranks", f"at most {MOST_RANKS:,} can be compared", work.ranks)], origin)
    return Work(work.grid, dict(_leaves(work.model_dump(mode="json"), "job")))


def differences(first: Work, second: Work) -> list[Problem]:
    """Return the keys in which two jobs differ, with both values; a model's name does not matter."""
    ours, theirs = first.keys, second.keys
    return [
        Problem(key, f"is {ours.get(key)!r} in the first trace and {theirs.get(key)!r} in the second")
        for key in {**ours, **theirs}
        if key != "job.model.name" and ours.get(key) != theirs.get(key)
    ]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    else:
        yield path, value
