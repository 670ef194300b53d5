"""The command `fourfold study`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from twin.commands.options import Json, Overrides, Scheduler, Slurm
from twin.description.problems import fail
from twin.engine.threads import load_numpy_alone

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415, T201

INTERRUPTED = 130


def study(
    file: Annotated[Path, typer.Argument(help="Study file (YAML).")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of results; a study that is there goes "
            "on where it stopped. By default FILE's name and -study.",
        ),
    ] = None,
    overrides: Overrides = None,
    workers: Annotated[int, typer.Option(min=0, max=1024, help="Processes to use; 0: one for each core.")] = 0,
    scheduler: Scheduler = None,
    slurm: Slurm = None,
    force: Annotated[bool, typer.Option("--force", help="Start over, replacing what a study wrote to DIR.")] = False,
    as_json: Json = False,
) -> None:
    """Ask one question of many jobs: sweeps, scaling, sensitivity, time and cost to a target."""
    begin = time.perf_counter()
    if scheduler is not None and slurm is not None:
        raise fail("--slurm", "starts a scheduler of its own; leave out --scheduler", slurm)
    load_numpy_alone()
    from twin.engine.parallel import cores, ended_like_interrupted
    from twin.show import console
    from twin.show import study as shown
    from twin.studies.results import results_of, write_results
    from twin.studies.run import Where, run_study

    directory = out or Path(f"{file.stem}-study")
    where = Where(workers or cores(), scheduler, slurm)
    try:
        with ended_like_interrupted(), console.progress("computing points") as advance:
            run = run_study(file, directory, where, overrides=overrides or [], force=force, progress=advance)
    except KeyboardInterrupt:
        print(
            f"fourfold: interrupted; what is finished is in {directory}: the same command goes on from there",
            file=sys.stderr,
        )
        raise typer.Exit(INTERRUPTED) from None
    results = results_of(run)
    write_results(results)
    if as_json:
        console.print_json(shown.study_object(results, time.perf_counter() - begin))
    else:
        shown.study(results, time.perf_counter() - begin)
    status = [answer["status"] for answer in run.answers.values()]
    if "crashed" in status or "done" not in status:
        raise typer.Exit(1)
