"""`fourfold memorize`: what a model learns by heart, and how the Goldfish loss prevents it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from runtime.memorize.directory import StudyDirectory
    from runtime.memorize.run import StudyRun
    from twin.description.job import Job

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415

Resolve = Callable[["Job"], "Job"]


def memorize(resolve: Resolve) -> Callable[..., None]:
    """Make the command; `resolve` settles what a job leaves to Fourfold."""

    def memorize(
        file: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="Study file (YAML).")],
        out: Annotated[
            Path | None,
            typer.Option(
                metavar="DIR",
                help="Directory of results; a study that is there goes on where it stopped. By default STUDY's name "
                "and -memorize.",
            ),
        ] = None,
        overrides: Annotated[
            list[str] | None,
            typer.Option(
                "--set",
                metavar="KEY=VALUE",
                help="Override a key of the study, such as seeds=1, texts.source=PATH or job.train.steps=100. May be "
                "repeated.",
            ),
        ] = None,
        ranks: Annotated[
            int | None,
            typer.Option("--ranks", min=1, help="Start the job's ranks here; without it torchrun or srun starts them."),
        ] = None,
        force: Annotated[
            bool, typer.Option("--force", help="Start over, replacing what a study wrote to DIR.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    ) -> None:
        """Measure what a model learns by heart, with and without the Goldfish loss, beside texts it never saw."""
        from runtime.launch.environment import from_environment, refuse_ranks
        from runtime.launch.need import need_torch
        from runtime.memorize.study import load_study

        process = from_environment(os.environ)
        refuse_ranks(process, ranks)
        loaded = load_study(file, overrides or [])
        asked = next(iter(loaded.jobs.values())).ranks
        _check_ranks(process.launcher == "alone", process.ranks, ranks, asked)
        jobs = {name: resolve(job) for name, job in loaded.jobs.items()}
        out = out or Path(f"{file.stem}-memorize")
        need_torch("memorize")
        if process.launcher == "alone" and asked > 1:
            from runtime.launch.local import run_ranks

            arguments = ["memorize", str(file), "--out", str(out), *(f"--set={change}" for change in overrides or [])]
            arguments += [*(["--force"] if force else []), *(["--json"] if as_json else [])]
            raise typer.Exit(run_ranks(arguments, asked))
        begin = time.perf_counter()

        def finish(run: StudyRun, directory: StudyDirectory) -> None:
            from runtime.memorize.report import report_of, show, write

            report = report_of(run, time.perf_counter() - begin)
            write(report, directory.path)
            show(report, as_json=as_json)

        from runtime.launch.rank import run_as_rank
        from runtime.memorize.cells import cells_of
        from runtime.memorize.progress import bar
        from runtime.memorize.run import run_study

        def work() -> None:
            with bar(len(cells_of(loaded)), shown=process.rank == 0) as told:
                run_study(loaded, jobs, out, process, force=force, show=told, finish=finish)

        run_as_rank(process, work)

    return memorize


def _check_ranks(alone: bool, started: int, wanted: int | None, asked: int) -> None:
    """Hold the ranks that are there, or are to be started, against those of the job."""
    from twin.description.problems import fail

    if not alone and started != asked:
        raise fail("job.ranks", f"{started} ranks were started; start as many, or --set job.ranks and job.grid", asked)
    if alone and wanted is None and asked > 1:
        raise fail(
            "job.ranks", f"start the job's {asked} ranks with torchrun or srun, or here with --ranks {asked}", asked
        )
    if alone and wanted not in (None, asked):
        raise fail("--ranks", f"the job has {asked} ranks; start as many, or --set job.ranks and job.grid", wanted)
