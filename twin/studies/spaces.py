"""Spaces to ask about: the points of a study file, or the candidates of a search, each predicted by the twin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from twin.description.problems import fail
from twin.search.best import Given, settled
from twin.search.candidates import Candidate
from twin.search.entries import Figures
from twin.search.over import parse_over
from twin.search.search import Search, search
from twin.strategies import load_job, strategy_of, under
from twin.studies.derived import rows_of
from twin.studies.objective import OBJECTIVES, ObjectiveName, feasible
from twin.studies.run import StudyRun, Where, run_study
from twin.studies.trials import Trial, Trials


def trials_of_study(
    file: str | Path,
    *,
    out: str | Path | None = None,
    workers: int = 1,
    seed: int = 0,
    explore: float = 0.0,
    log: str | Path | None = None,
) -> Trials:
    """Return the points of a study as trials, of the study's objective.

    The study is computed into `out` as `fourfold study` does it, and only read where it is there. With more than one
    worker the calling script needs the usual `if __name__ == "__main__":`.
    """
    path = Path(file)
    run = run_study(path, Path(out) if out is not None else Path(f"{path.stem}-study"), Where(workers))
    space = _of_run(run)
    return Trials(space, run.loaded.study.objective, seed=seed, explore=explore, log=log)


def trials_of_job(
    job: str | Path | Mapping[str, Any],
    *,
    over: str = "",
    objective: ObjectiveName = "step_seconds",
    workers: int = 1,
    seed: int = 0,
    explore: float = 0.0,
    log: str | Path | None = None,
) -> Trials:
    """Return the candidates of a search as trials: every grid of a job's ranks, with the options in `over`.

    `over` is what `fourfold search --over` takes, such as `recompute,micro`. Raises DescriptionError for an objective
    that a search does not give.
    """
    known = [name for name in OBJECTIVES if name in Figures.__dataclass_fields__]
    if objective not in known:
        raise fail("objective", f"is not told apart by a search; choose from {', '.join(known)}", objective)
    raw = dict(job) if isinstance(job, Mapping) else Given(Path(job)).absolute
    opened = load_job(raw | {"grid": "auto", "batch": {**raw["batch"], "micro_sequences": "auto"}})
    found = search(opened, over=parse_over(over, strategy_of(opened)), workers=workers)
    return Trials(_of_search(raw, found, objective), objective, seed=seed, explore=explore, log=log)


def _of_run(run: StudyRun) -> Iterator[Trial]:
    objective = run.loaded.study.objective
    for point, row in zip(run.points, rows_of(run), strict=True):
        reason = "" if feasible(row) else row["reason"] or row["status"]
        yield Trial(
            number=point.number,
            values=point.labels,
            job=run.answers[point.number]["job"] or point.raw,
            predicted_seconds=row.get("step_seconds"),
            predicted=row.get(objective),
            reason=reason,
        )


def _of_search(raw: Mapping[str, Any], found: Search, objective: ObjectiveName) -> Iterator[Trial]:
    base = under(raw, found.job.strategy)
    every = [_values(entry.candidate) for entry in found.entries]
    varied = [key for key in every[0] if len({values[key] for values in every}) > 1]
    for number, (entry, values) in enumerate(zip(found.entries, every, strict=True), 1):
        candidate, figures = entry.candidate, entry.figures
        yield Trial(
            number=number,
            values={key: values[key] for key in varied},
            job=settled(base, candidate.grid, candidate.micro_sequences or 1, candidate.options),
            predicted_seconds=None if figures is None else figures.step_seconds,
            predicted=None if figures is None else getattr(figures, objective),
            reason="" if figures is not None else candidate.reason or entry.failure,
        )


def _values(candidate: Candidate) -> dict[str, Any]:
    """Return what a candidate is, by dotted names and as plain values."""
    found: dict[str, Any] = {f"grid.{axis}": size for axis, size in candidate.grid.by_axis().items()}
    found["batch.micro_sequences"] = candidate.micro_sequences
    for key, value in candidate.options.as_json().items():
        below = value if isinstance(value, dict) else {"": value}
        found |= {f"{key}.{inner}".rstrip("."): each for inner, each in below.items()}
    return found
