"""The jobs of two runs, read off their manifests: the same, or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import ValidationError, create_model

from twin.description.grid import GridSpec
from twin.description.job import DEFAULT_STRATEGY, Job
from twin.description.problems import DescriptionError, Problem, did_you_mean, from_pydantic
from twin.description.spec import Spec, leaves
from twin.schedule.communicator import Role
from twin.strategies import named, names

MAY_DIFFER = {
    *("name", "machine", "train", "seed", "library", "slowest_device", "stragglers", "degraded", "placement"),
    *("power_cap", "power_cap_watts", "energy"),
}
"""What changes how long a job's ops take, or what they cost, not which ops it has."""
MAX_RANKS = 1 << 20


@dataclass(frozen=True)
class Work:
    """The part of a job that decides what its ranks do."""

    grid: GridSpec
    keys: dict[str, Any]
    """Every key below `job` with its value, defaults filled in."""
    roles: tuple[Role, ...]
    """Ranks that run the same program: the stages of a pipeline, else all ranks."""


@cache
def _work_model(options: type[Job]) -> type[Spec]:
    """Derive from a strategy's job the part that decides what ranks do."""
    fields = {key: (f.annotation, f) for key, f in options.model_fields.items() if key not in MAY_DIFFER}
    model: type[Spec] = create_model("Job", __base__=Spec, **fields)  # type: ignore[call-overload]  # taken as they are
    return model


def _options_of(job: Mapping[str, Any], origin: str) -> type[Job]:
    """Return the keys of a job, by its strategy; runs that are older than strategies have the first one."""
    name = job.get("strategy", DEFAULT_STRATEGY)
    try:
        return named(str(name)).options
    except KeyError:
        raise DescriptionError([Problem("job.strategy", did_you_mean(str(name), names()), name)], origin) from None


def work_of(manifest: Mapping[str, Any], origin: str) -> Work:
    """Read what a run's ranks did; keys that are younger than the run have their defaults."""
    job = manifest.get("job")
    if not isinstance(job, dict):
        raise DescriptionError([Problem("job", "is missing, or no mapping")], origin)
    model = _work_model(_options_of(job, origin))
    try:
        work: Any = model.model_validate({k: v for k, v in job.items() if k not in MAY_DIFFER})
    except ValidationError as error:
        raise DescriptionError(from_pydantic(error, model, "job"), origin) from None
    if not isinstance(work.grid, GridSpec) or work.ranks != work.grid.ranks:
        raise DescriptionError([Problem("job.grid", f"is not one of {work.ranks} ranks", str(work.grid))], origin)
    if work.ranks > MAX_RANKS:
        raise DescriptionError([Problem("job.ranks", f"at most {MAX_RANKS:,} can be compared", work.ranks)], origin)
    # who does what does not depend on the machine
    strategy, fields = named(str(work.strategy)), {key: getattr(work, key) for key in work.model_fields_set}
    roles = strategy.roles(strategy.options.model_construct(**fields))
    return Work(work.grid, dict(leaves(work.model_dump(mode="json"), "job")), roles)


def differences(first: Work, second: Work) -> list[Problem]:
    """Return the keys in which two jobs differ, with both values; a model's name does not matter."""
    ours, theirs = first.keys, second.keys
    return [
        Problem(key, f"is {ours.get(key)!r} in the first trace and {theirs.get(key)!r} in the second")
        for key in {**ours, **theirs}
        if key != "job.model.name" and ours.get(key) != theirs.get(key)
    ]
