"""Read job files: the strategy that a job names says which keys it has and which rules it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from twin.description import job as common
from twin.description.job import AUTO, DEFAULT_STRATEGY, Job
from twin.description.load import apply_override, resolve_names, validate
from twin.description.problems import DescriptionError, Problem, did_you_mean, from_pydantic
from twin.description.strict_yaml import read_yaml
from twin.schedule.ops import Schedule
from twin.strategies.auto import AutoJob, without_own_keys
from twin.strategies.registry import named, names, strategy_of


def load_job(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), *, strategy: str | None = None
) -> Job:
    """Read a job from a file (by its path) or a mapping, apply `a.b=c` overrides, and check all rules.

    `strategy`, a name or `auto`, takes the place of the job's own: of its keys those stay that every job has, grid and
    micro-batch are open. Raises DescriptionError with every problem found.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        raw, origin = {"name": path.stem, **read_yaml(path)}, str(path)
        if "study" in raw and "model" not in raw:
            raise DescriptionError([Problem("study", "this is a study; use `fourfold study`", raw["study"])], origin)
    else:
        raw, origin = dict(source), "job"
    if strategy is not None and strategy != raw.get("strategy", DEFAULT_STRATEGY):
        raw = under(raw, strategy) | {"grid": "auto"}
        if isinstance(batch := raw.get("batch"), dict):
            raw["batch"] = {**batch, "micro_sequences": "auto"}
    for override in overrides:
        raw = apply_override(raw, override)
    options, misplaced = _options(raw, origin), list[Problem]()
    if options is AutoJob:
        raw, misplaced = without_own_keys(raw)
    try:
        raw = resolve_names(raw, Path(origin).parent)
    except DescriptionError as error:
        raise DescriptionError([*misplaced, *error.problems, *_other_problems(options, raw)], origin) from None
    try:
        job = validate(options, raw, origin)
    except DescriptionError as error:
        raise DescriptionError([*misplaced, *error.problems], origin) from None
    if problems := [*misplaced, *check(job)]:
        raise DescriptionError(problems, origin)
    return job


def under(raw: Mapping[str, Any], strategy: str) -> dict[str, Any]:
    """Return a job file's keys under a strategy: those of every job, and the strategy's own if it is the file's."""
    if raw.get("strategy", DEFAULT_STRATEGY) == strategy:
        return dict(raw)
    return {key: value for key, value in raw.items() if key in Job.model_fields} | {"strategy": strategy}


def _options(raw: Mapping[str, Any], origin: str) -> type[Job]:
    """Return the keys that a job has, by its strategy."""
    name = raw.get("strategy", DEFAULT_STRATEGY)
    if name == AUTO:
        return AutoJob
    if not isinstance(name, str) or name not in names():
        raise DescriptionError([Problem("strategy", did_you_mean(str(name), (*names(), AUTO)), name)], origin)
    return named(name).options


def _other_problems(options: type[Job], raw: Mapping[str, Any]) -> list[Problem]:
    """Problems of the rest of the job when its model or machine cannot be found."""
    try:
        options.model_validate(raw)
    except ValidationError as error:
        found = from_pydantic(error, options)
        return [p for p in found if not p.path.startswith(("machine", "model"))]
    return []


def check(job: Job) -> list[Problem]:
    """Return every rule that the job as a whole breaks, its grid's too where that is given."""
    problems = common.check(job)
    if job.strategy == AUTO:
        return problems  # of each strategy its rules are checked when it is searched
    if job.grid == "auto":
        return problems + strategy_of(job).check(job)
    return problems + check_grid(job)


def check_grid(job: Job) -> list[Problem]:
    """Return the rules that the grid of a job, which is given, breaks: ranks, strategy, batch."""
    grid = job.concrete_grid
    return [*common.check_ranks(job, grid), *strategy_of(job).check(job), *common.check_batch(job, grid)]


def generated(job: Job, rank: int = 0) -> Schedule:
    """Return the schedule that a job's strategy writes for one of its ranks."""
    strategy = strategy_of(job)
    role = next(role for role in strategy.roles(job) if rank in role.ranks)
    return strategy.schedule(job, role)
