"""The command `fourfold simulate`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from twin.commands.options import Json, Overrides, rank_list
from twin.commands.under import InStrategy, asked_job
from twin.description.problems import fail
from twin.engine.garbage import uncollected
from twin.engine.threads import load_numpy_alone

if TYPE_CHECKING:
    from twin.engine.simulation import Simulation

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415, T201


class EngineName(StrEnum):
    """Engines of `simulate`."""

    folded = "folded"
    des = "des"
    ranks = "ranks"


def simulate(
    job: Annotated[Path | None, typer.Argument(help="Job file (YAML).")] = None,
    overrides: Overrides = None,
    schedule: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Simulate this recorded schedule, on the job that JOB or the recording describes."
        ),
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Machine to run on in place of the job's.")
    ] = None,
    strategy: InStrategy = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="folded: one rank of each class with the same future; des: every "
            "rank, no matter how alike; ranks: every rank with its own drawn "
            "device speed, jitter and noise."
        ),
    ] = EngineName.folded,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, max=10_000, metavar="N", help="With --engine ranks: simulate N draws and give percentiles."
        ),
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the run (trace, manifest, resolved job, timeline) into this new directory."),
    ] = None,
    show_ranks: Annotated[
        str,
        typer.Option(
            "--ranks",
            metavar="R,R,…",
            help="Ranks whose events are written; by default one of each class, as far as a table holds them.",
        ),
    ] = "",
    chrome: Annotated[Path | None, typer.Option(help="Also write a Chrome/Perfetto trace (.json or .json.gz).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what --out or --chrome wrote before.")] = False,
    with_interval: Annotated[
        bool, typer.Option("--interval", help="Also simulate optimistic and pessimistic terms.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Simulate one training step of a job, or a recorded one."""
    begin = time.perf_counter()
    if seeds > 1 and engine is not EngineName.ranks:
        raise fail("--seeds", "is for --engine ranks; the other engines draw nothing", seeds)
    if schedule is not None:
        _refuse_for_recordings({"--interval": with_interval, "--strategy": strategy is not None})
        keep = _Keep(out, chrome, force)
        _replay(schedule, job, machine, overrides or [], engine, show_ranks, keep, begin, as_json=as_json)
        return
    changed = [*(overrides or []), *([f"machine={machine}"] if machine else [])]
    with ExitStack() as stack:
        stack.enter_context(uncollected())  # modules and one step are no garbage; of many steps there is some
        load_numpy_alone()
        from twin import api
        from twin.engine.parallel import cores
        from twin.show import console

        if job is None:
            raise fail("JOB", "name a job file, or a recording with --schedule")
        asked = asked_job(job, changed, strategy)
        described = asked.job
        if engine is EngineName.ranks or not described.is_concrete:
            stack.close()
        chosen = rank_list(show_ranks, described.ranks)
        with console.progress("simulating") as advance:
            found = asked.settled(
                api.simulate,
                engine=engine.value,
                seeds=seeds,
                interval=with_interval,
                ranks=chosen if engine is EngineName.ranks else None,
                workers=cores(),
                progress=advance,
            )
        if out is not None:
            found.write(out, chosen, overwrite=force)
        if chrome is not None:
            found.write_chrome(chrome, chosen, overwrite=force)
        if as_json:
            console.print_json(found.as_json)
            return
        from twin.show import step as shown

        if asked.words:
            print(asked.words)
        if found.choice is not None:
            shown.choice(found.choice)
        if found.every_rank is not None:
            shown.every_rank(found.every_rank, found.as_json, out)
        else:
            shown.step(found.simulation, found.figures, found.as_json, out, found.pipeline)
        _Keep(out, chrome, force).say(found.simulation, chosen)


def _refuse_for_recordings(given: Mapping[str, bool]) -> None:
    for option in (name for name, is_given in given.items() if is_given):
        raise fail(option, "is for jobs; a recorded schedule is simulated as it is")


def _replay(
    schedule: Path,
    job: Path | None,
    machine: str | None,
    overrides: list[str],
    engine: EngineName,
    show_ranks: str,
    keep: _Keep,
    begin: float,
    *,
    as_json: bool,
) -> None:
    from twin.engine.replay import replay
    from twin.show import console
    from twin.show import step as shown

    if engine is EngineName.ranks:
        raise fail("--engine", "ranks is for jobs; simulate recordings with folded or des", "ranks")
    replayed = replay(schedule, job, machine, overrides, _one_of_two(engine))
    simulation = replayed.simulation
    answer = replayed.answer(time.perf_counter() - begin)
    ranks = rank_list(show_ranks, simulation.job.ranks)
    keep.write(simulation, answer, ranks)
    if as_json:
        console.print_json(answer)
        return
    show = shown.step if replayed.described else shown.own_step
    show(simulation, replayed.figures, answer, keep.out)
    keep.say(simulation, ranks)


def _one_of_two(engine: EngineName) -> Literal["folded", "des"]:
    return "des" if engine is EngineName.des else "folded"


@dataclass(frozen=True)
class _Keep:
    """Where a simulated run is to be written."""

    out: Path | None
    chrome: Path | None
    force: bool

    def write(self, simulation: Simulation, answer: dict[str, Any], ranks: list[int] | None) -> None:
        """Write it where that is wanted."""
        from twin.engine.runs import write_chrome_trace, write_run

        if self.out is not None:
            write_run(self.out, simulation, answer, ranks, overwrite=self.force)
        if self.chrome is not None:
            write_chrome_trace(self.chrome, simulation, ranks, overwrite=self.force)

    def say(self, simulation: Simulation, ranks: list[int] | None) -> None:
        """Say what of it was written, and where."""
        if self.chrome is not None:
            print(f"Chrome trace written to {self.chrome}; open it in ui.perfetto.dev")
        if ranks or (self.out is None and self.chrome is None):
            return
        from twin.engine.runs import default_ranks

        written, classes = len(default_ranks(simulation)), len(simulation.partition.representatives)
        if written < classes:
            print(f"Events of {written} of {classes} classes written, as many as a table holds; --ranks chooses others")
