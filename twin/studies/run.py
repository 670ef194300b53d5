"""A study from file to results: points, what is left of them, workers, tables."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twin.studies.compute import Answer, Status, Task, compute_point
from twin.studies.description import LoadedStudy, load_study
from twin.studies.directory import StudyDirectory, code_digest, study_directory
from twin.studies.measured import own_measured
from twin.studies.points import Point, points_of
from twin.studies.workers import completed

Completed = Generator[tuple[Task, Answer | None], None, None]
LOST = "its worker died, twice; out of memory?"


@dataclass(frozen=True)
class Where:
    """Where points are computed: processes of this machine, or Dask's workers."""

    workers: int = 1
    scheduler: str | None = None
    slurm: int | None = None


@dataclass(frozen=True)
class StudyRun:
    """A study with the answers to its points."""

    loaded: LoadedStudy
    points: tuple[Point, ...]
    answers: dict[int, Answer]
    directory: Path
    computed: int
    """Points computed by this run; the others were finished before."""


def run_study(
    file: Path,
    out: Path,
    where: Where,
    *,
    overrides: Sequence[str] = (),
    force: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> StudyRun:
    """Compute what is not finished yet of a study, and return all of it.

    Interrupted at any moment, it goes on from the finished points when it is called again.
    """
    loaded = load_study(file, overrides)
    points = points_of(loaded, file.parent)
    own_measured(loaded.study.measured, points)  # refused before anything is computed
    manifest = {
        "study": loaded.study.study,
        "title": loaded.title,
        "digest": loaded.digest,
        "points": len(points),
        "file": str(file),
        "asked": loaded.study.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }
    with study_directory(out, manifest, force=force) as directory:
        left = [point for point in points if point.number not in directory.answers]
        progress(len(points) - len(left), len(points))
        compute(left, loaded, where, directory, lambda: progress(len(directory.answers), len(points)))
        return StudyRun(loaded, tuple(points), dict(directory.answers), out, len(left))


def compute(
    points: Sequence[Point], loaded: LoadedStudy, where: Where, directory: StudyDirectory, tick: Callable[[], None]
) -> None:
    """Compute points, large jobs first so that the last ones are short, and keep each at once."""
    for point in points:
        if point.refusal:
            directory.add(_answered(point.number, "refused", point.refusal))
            tick()
    order = sorted((point for point in points if not point.refusal), key=lambda p: -_size(p.raw))
    study = loaded.study
    tasks = [
        Task(number=p.number, raw=p.raw, engine=study.engine, seeds=study.seeds, only_fitting=study.only_fitting)
        for p in order
    ]
    if not tasks:
        return
    with ExitStack() as stack:
        for task, answer in stack.enter_context(closing(_answers(tasks, where, stack))):
            directory.add(answer or _answered(task["number"], "crashed", LOST))
            tick()


def _answers(tasks: Sequence[Task], where: Where, stack: ExitStack) -> Completed:
    if where.scheduler is None and where.slurm is None:
        return completed(compute_point, tasks, where.workers)
    from twin.studies import cluster  # noqa: PLC0415 - Dask is an extra

    opened = (
        cluster.scheduler(where.scheduler, code_digest)
        if where.scheduler is not None
        else cluster.slurm(where.slurm or 1, code_digest)
    )
    return cluster.completed_by(stack.enter_context(opened), compute_point, tasks)


def _size(raw: dict[str, Any]) -> int:
    ranks = raw.get("ranks")
    return ranks if isinstance(ranks, int) else 0


def _answered(number: int, status: Status, reason: str) -> Answer:
    """Return the answer to a point that was not computed."""
    return Answer(number=number, status=status, reason=reason, figures={}, job={}, wall_seconds=0.0)
