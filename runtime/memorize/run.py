"""A study on any grid: ranks meet once, and do one training after the other, all together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from runtime.launch.board import Board
from runtime.launch.devices import agree_on_type
from runtime.launch.environment import Process
from runtime.launch.meeting import agree, choose_device, join, make_deterministic, open_store, set_threads
from runtime.memorize.cells import Cell, cells_of
from runtime.memorize.directory import StudyDirectory, study_directory
from runtime.memorize.study import LoadedStudy
from runtime.memorize.texts import Pool, read_pool
from runtime.memorize.train import do_cell
from runtime.parallel.mesh import Mesh
from runtime.plan.computed import check_computed
from runtime.strategies import ranks_of, refuse
from twin.description.job import Job


@dataclass(frozen=True)
class StudyRun:
    """A study with what came out of all its trainings."""

    loaded: LoadedStudy
    jobs: Mapping[str, Job]
    """Settled, by the name of the model."""
    cells: list[Cell]
    done: dict[int, dict[str, Any]]
    directory: Path
    trained: int
    """Trainings of this run; the others were done before."""


Show = Callable[[str, float], None]
"""Told what is done now, and how many trainings are."""


def run_study(
    loaded: LoadedStudy,
    jobs: Mapping[str, Job],
    out: Path,
    process: Process,
    *,
    force: bool,
    show: Show,
    finish: Callable[[StudyRun, StudyDirectory], None],
) -> None:
    """Do what is not done yet of a study; every rank must call it. Rank 0 keeps the results, and calls `finish`.

    Raises DescriptionError.
    """
    first = next(iter(jobs.values()))
    options = first.train
    set_threads(process, options.threads)
    if options.deterministic:
        make_deterministic()
    store = open_store(process, options.timeout_seconds) if process.ranks > 1 else None
    all_agree = partial(agree, store, process)
    pool = all_agree("texts", lambda: _checked(loaded, jobs))
    device = all_agree("device", lambda: choose_device(options.device, process))
    board = Board(store, process)
    agree_on_type(board, device)
    cells = cells_of(loaded)
    with ExitStack() as held:
        directory = all_agree("directory", lambda: _opened(loaded, jobs, pool, out, process, held, force=force))
        done: dict[int, dict[str, Any]] = {} if directory is None else directory.done
        known = set(board.tell(lambda: sorted(done)))
        left = [cell for cell in cells if cell.number not in known]
        if store is not None:
            join(process, store, device, options.timeout_seconds)
        if left:
            _train(left, len(cells), loaded, jobs, pool, device, directory, show)
        if directory is not None:
            finish(StudyRun(loaded, jobs, cells, directory.done, out, len(left)), directory)


def _train(
    left: list[Cell],
    every: int,
    loaded: LoadedStudy,
    jobs: Mapping[str, Job],
    pool: Pool,
    device: torch.device,
    directory: StudyDirectory | None,
    show: Show,
) -> None:
    """Do the trainings that are left; the ranks of a grid make its groups once."""
    # a grid does not say all of who holds what
    grids = {name: (job.strategy, str(job.concrete_grid), str(ranks_of(job))) for name, job in jobs.items()}
    timeout = next(iter(jobs.values())).train.timeout_seconds
    ranks = {grids[name]: ranks_of(job) for name, job in jobs.items()}
    meshes = {grid: Mesh.create(axes, timeout_seconds=timeout) for grid, axes in ranks.items()}
    for number, cell in enumerate(left, start=every - len(left)):
        name = cell.setting.model
        job = cell.job(jobs[name], loaded.study.h)
        label = ", ".join(filter(None, (name, f"k {cell.setting.k_name}", cell.setting.mask, f"seed {cell.seed}")))
        advance = partial(_tell, show, label, number)
        figures = do_cell(cell, job, loaded.study.texts, pool, meshes[grids[name]], device, advance)
        if directory is not None:
            directory.add(figures)


def _tell(show: Show, label: str, number: int, share: float) -> None:
    show(label, number + share)


def _checked(loaded: LoadedStudy, jobs: Mapping[str, Job]) -> Pool:
    """See what only a rank can see, before any training begins."""
    for job in jobs.values():
        check_computed(job)
        refuse(job)
    return read_pool(loaded)


def _opened(
    loaded: LoadedStudy,
    jobs: Mapping[str, Job],
    pool: Pool,
    out: Path,
    process: Process,
    held: ExitStack,
    *,
    force: bool,
) -> StudyDirectory | None:
    """Open the directory of results, on rank 0."""
    if process.rank != 0:
        return None
    asked = loaded.study.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    decides = {"study": loaded.digest(jobs), "texts": pool.digest}
    return held.enter_context(
        study_directory(out, {"title": loaded.title, "decides": decides, "asked": asked}, force=force)
    )
