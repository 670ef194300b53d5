"""`fourfold record`: write down what a rank of a job would do, and hold it against the twin."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from twin.description.job import Job
    from twin.schedule.ops import Schedule

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415

DIFFERENT = 1
Under = Callable[[Path, Sequence[str], str], "Job"]
"""Reads a job file with overrides under a strategy."""


def record(resolve: Callable[[Job], Job], under: Under) -> Callable[..., None]:
    """Make the command; `resolve` settles what a job leaves to Fourfold, `under` reads it as `train --strategy`."""

    def record(
        job: Annotated[Path, typer.Argument(help="Job file (YAML), the same that simulate and train read.")],
        out: Annotated[Path, typer.Option(metavar="FILE", help="Recording to write (.json, or .json.gz).")],
        overrides: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job. May be repeated."),
        ] = None,
        ranks: Annotated[
            int | None,
            typer.Option("--ranks", min=1, help="Size of the world in place of the job's; the grid must have as many."),
        ] = None,
        strategy: Annotated[
            str | None,
            typer.Option("--strategy", metavar="NAME", help="Record the job that train --strategy NAME runs."),
        ] = None,
        rank: Annotated[int, typer.Option("--rank", min=0, help="Which rank to be.")] = 0,
        force: Annotated[bool, typer.Option("--force", help="Replace the recording that is there.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Run the real training step of one rank of any world here, without devices, and record it."""
        from runtime.launch.need import need_torch
        from twin.strategies import load_job

        need_torch("record")
        changed = [*(overrides or []), *([f"ranks={ranks}"] if ranks is not None else [])]
        described = resolve(load_job(job, changed) if strategy is None else under(job, changed, strategy))
        from runtime.recorder.gpt import record as run
        from twin.schedule.difference import difference
        from twin.schedule.recording import write_recording
        from twin.strategies import generated

        begin = time.perf_counter()
        recording = run(described, rank)
        seconds = time.perf_counter() - begin
        write_recording(out, recording, overwrite=force)
        found = difference(recording.schedule, generated(described, rank))
        facts = totals(recording.schedule)
        if as_json:
            typer.echo(
                json.dumps(
                    {
                        "rank": rank,
                        "ranks": described.ranks,
                        **facts,
                        "seconds": seconds,
                        "equals_twin": not found,
                        "difference": found,
                    }
                )
            )
        else:
            typer.echo(
                f"rank {rank} of {described.ranks:,} ({described.concrete_grid}) in {seconds:.1f} s: "
                f"{_told(facts)}; written to {out}"
            )
            typer.echo(found or "it equals the twin's schedule, op by op")
        if found:
            raise typer.Exit(DIFFERENT)

    return record


def totals(schedule: Schedule) -> dict[str, Any]:
    """Count ops, collectives and their bytes by axis, and flops."""
    from twin.schedule.ops import Compute, Start

    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    ops, flops = 0, 0.0
    for op, _ in schedule.flat():
        ops += 1
        if isinstance(op, Start):
            count[op.axis] += 1
            size[op.axis] += round(op.bytes)
        elif isinstance(op, Compute):
            flops += op.kernel.flops
    return {"ops": ops, "collectives": dict(count), "collective_bytes": dict(size), "flops": flops}


def _told(facts: dict[str, Any]) -> str:
    from twin.description.units import format_si

    collectives = [
        f"{count:,} collectives over {axis} ({format_si(facts['collective_bytes'][axis], 'B', digits=3)})"
        for axis, count in facts["collectives"].items()
    ]
    flops = format_si(facts["flops"], "FLOP", digits=3)
    return ", ".join([f"{facts['ops']:,} ops", *collectives, flops])
