"""The command `fourfold goodput`."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twin.commands.options import Json, Overrides
from twin.commands.under import InStrategy, asked_job
from twin.description.problems import fail

if TYPE_CHECKING:
    from twin.description.job import Job

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415


DISK_INTERVAL_SECONDS = 3600.0


class ModeName(StrEnum):
    """The way state is saved."""

    sync = "sync"
    async_ = "async"
    memory = "memory"


def goodput(
    job: Annotated[Path, typer.Argument(help="Job file (YAML).")],
    overrides: Overrides = None,
    strategy: InStrategy = None,
    days: Annotated[float, typer.Option(min=0.01, max=10_000, help="Length of the run.")] = 30.0,
    mode: Annotated[
        ModeName,
        typer.Option(
            help="sync: steps wait for the file system; async: for a copy to the host "
            "only; memory: also copies to a neighbour's memory."
        ),
    ] = ModeName.async_,
    interval: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Work between two checkpoints, such as 30min; in mode "
            "memory between two copies at a neighbour. The best one if absent.",
        ),
    ] = "",
    disk_interval: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="In mode memory, work between two checkpoints on the file system; an hour if absent."
        ),
    ] = "",
    state: Annotated[
        str, typer.Option(metavar="BYTES", help="Size of a checkpoint, such as 4.9TB; 12 bytes a parameter if absent.")
    ] = "",
    spares: Annotated[
        int | None, typer.Option(min=0, help="Nodes that can replace failed ones at once; always enough if absent.")
    ] = None,
    no_slow: Annotated[
        bool, typer.Option("--no-slow", help="Leave out devices and links that become slow without failing.")
    ] = False,
    detect: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time until a slow device is found, such as 10min, in "
            "place of the machine's; also says what that is worth.",
        ),
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, max=100_000, help="Runs to simulate.")] = 100,
    as_json: Json = False,
) -> None:
    """Predict what failures and checkpoints leave of a long run, and the best checkpoint interval."""
    from twin.cost.memory import advice, memory_use
    from twin.engine.simulate import simulate
    from twin.goodput.cycle import Policy
    from twin.goodput.long_run import plan_of
    from twin.goodput.predict import predict, worth
    from twin.goodput.slow import found_after, slowdowns_of
    from twin.search.choose import choose
    from twin.show import console
    from twin.show import goodput as shown

    asked = asked_job(job, overrides or [], strategy)
    described = asked.job
    every, on_disk = _quantity("--interval", interval), _quantity("--disk-interval", disk_interval)
    if on_disk is not None and mode is not ModeName.memory:
        raise fail("--disk-interval", "is for --mode memory; the others have --interval", disk_interval)
    size, noticed = _quantity("--state", state, "_bytes"), _quantity("--detect", detect)
    if noticed is not None:
        _check_detect(described, detect, no_slow=no_slow)
    if described.is_concrete:
        simulation = simulate(described)
    else:
        with console.progress("simulating candidates") as advance:
            simulation = asked.settled(choose, progress=advance).best
    plan = plan_of(simulation.job, simulation.step_seconds, size)
    if every is not None and every < plan.step_seconds:
        raise fail(
            "--interval",
            f"is shorter than a step, {plan.step_seconds:.3g} s, and state is saved between steps",
            interval,
        )
    if on_disk is not None and on_disk < (every or plan.step_seconds):
        raise fail("--disk-interval", "is shorter than that between copies in memory", disk_interval)
    slowdowns = () if no_slow else slowdowns_of(simulation)
    earlier = slowdowns if noticed is None else found_after(slowdowns, noticed)
    policy = Policy(mode.value, every or 0.0, on_disk or DISK_INTERVAL_SECONDS, spares)
    with console.progress("trying intervals") as advance:
        ask = partial(predict, seconds=days * 86400.0, seeds=seeds, seed=described.seed, progress=advance)
        found = ask(replace(plan, slowdowns=earlier), policy)
        gained = None
        if noticed is not None:
            gained = worth(found, ask(replace(plan, slowdowns=slowdowns), found.policy))
    use = memory_use(simulation.job)
    if as_json:
        console.print_json(
            {
                "job": described.name,
                "machine": described.machine.name,
                "ranks": described.ranks,
                "memory_fits": use.fits,
                "step_seconds": plan.step_seconds,
                **found.figures(),
                **({} if gained is None else {"detect": gained}),
            }
        )
        return
    shown.goodput(simulation.job, found, "" if use.fits else advice(simulation.job, use), gained)


def _check_detect(job: Job, text: str, *, no_slow: bool) -> None:
    """Refuse a time to detection where nothing is there to be detected."""
    known = job.machine.reliability
    if no_slow:
        raise fail("--detect", "is about slow devices; leave out --no-slow", text)
    if known is None or known.slow_device is None:
        raise fail(
            "--detect",
            f"{job.machine.name} does not say how often its devices become slow; set "
            "machine.reliability.slow_device (docs/howto/reliability.md)",
            text,
        )


def _quantity(option: str, text: str, suffix: str = "_seconds") -> float | None:
    """Read a time or a size with its unit; None if nothing was given."""
    from twin.description.units import SUFFIXES, parse_quantity

    if not text:
        return None
    try:
        found = parse_quantity(text, SUFFIXES[suffix])
    except ValueError as error:
        raise fail(option, str(error)) from None
    if text.strip()[-1].isdigit() or text.strip().endswith("."):
        raise fail(option, "expected a number with its unit, such as 30min or 4.9TB", text)
    if found <= 0.0:
        raise fail(option, "must be more than 0", text)
    return found
