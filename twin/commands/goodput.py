"""The command `fourfold goodput`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from twin.commands.options import Json, Overrides
from twin.description.problems import fail

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415


DISK_INTERVAL_SECONDS = 3600.0


class ModeName(StrEnum):
    """How state is saved."""

    sync = "sync"
    async_ = "async"
    memory = "memory"


def goodput(
    job: Annotated[Path, typer.Argument(help="Job file (YAML).")],
    overrides: Overrides = None,
    days: Annotated[float, typer.Option(min=0.01, max=10_000, help="Length of the run.")] = 30.0,
    mode: Annotated[ModeName, typer.Option(help="sync: steps wait for the file system; async: for a copy to the host "
                                           "only; memory: also copies to a neighbour's memory.")] = ModeName.async_,
    interval: Annotated[str, typer.Option(metavar="TIME", help="Work between two checkpoints, such as 30min; in mode "
                                          "memory between two copies at a neighbour. The best one if absent.")] = "",
    disk_interval: Annotated[str, typer.Option(metavar="TIME", help="In mode memory, work between two checkpoints on "
                                               "the file system; an hour if absent.")] = "",
    state: Annotated[str, typer.Option(metavar="BYTES", help="Size of a checkpoint, such as 4.9TB; 12 bytes a "
                                       "parameter if absent.")] = "",
    spares: Annotated[int | None, typer.Option(min=0, help="Nodes that can replace failed ones at once; always "
                                               "enough if absent.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100_000, help="Runs to simulate.")] = 100,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Predict what failures and checkpoints leave of a long run, and the best checkpoint interval."""
    from twin import show
    from twin.cost.memory import advice, memory_use
    from twin.description.load import load_job
    from twin.engine.simulate import simulate
    from twin.study.choose import choose, is_concrete
    from twin.study.goodput.plan import plan_of
    from twin.study.goodput.predict import predict
    from twin.study.goodput.run import Policy

    described = load_job(job, overrides or [])
    every, on_disk = _quantity("--interval", interval), _quantity("--disk-interval", disk_interval)
    if on_disk is not None and mode is not ModeName.memory:
        raise fail(
            "--disk-interval", "is for --mode memory; the others have --interval", disk_interval
        )
    size = _quantity("--state", state, "_bytes")
    if is_concrete(described):
        simulation = simulate(described)
    else:
        with show.progress("simulating candidates") as advance:
            simulation = choose(described, progress=advance).best
    plan = plan_of(simulation.job, simulation.step_seconds, size)
    if every is not None and every < plan.step_seconds:
        raise fail("--interval", f"is shorter than a step, {plan.step_seconds:.3g} s, and state is saved between "
                   "steps", interval)  # fmt: skip
    if on_disk is not None and on_disk < (every or plan.step_seconds):
        raise fail(
            "--disk-interval", "is shorter than that between copies in memory", disk_interval
        )
    policy = Policy(mode.value, every or 0.0, on_disk or DISK_INTERVAL_SECONDS, spares)
    with show.progress("trying intervals") as advance:
        found = predict(
            plan, policy, days * 86400.0, seeds=seeds, seed=described.seed, progress=advance
        )
    use = memory_use(simulation.job)
    if as_json:
        show.print_json({"job": described.name, "machine": described.machine.name, "ranks": described.ranks,
                         "memory_fits": use.fits, "step_seconds": plan.step_seconds, **found.figures()})  # fmt: skip
        return
    show.goodput(simulation.job, found, "" if use.fits else advice(simulation.job, use))


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
