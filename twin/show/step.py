"""A simulated step on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twin.description.units import counted, format_amount, format_si
from twin.show.console import make_console, part_time, step_time
from twin.show.energy import drawn
from twin.show.pipeline import pipeline
from twin.strategies import strategy_of

if TYPE_CHECKING:
    from twin.description.job import Job
    from twin.engine.every_rank import EveryRank
    from twin.engine.report import Report
    from twin.engine.simulation import Simulation
    from twin.search.choose import Choice
    from twin.trace.bubbles import PipelineRun


BAR_WIDTH = 30
MIN_SHOWN = 1e-6
"""Shorter waits for peers, as a share of the step, are rounding."""


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:5.1f} %" if whole else ""


def _bar(part: float, whole: float, colour: str) -> str:
    return f"[{colour}]{'█' * round(BAR_WIDTH * part / whole)}[/]" if whole > 0 else ""


def step(
    simulation: Simulation, figures: Report, answer: Mapping[str, Any], out: Path | None, run: PipelineRun | None = None
) -> None:
    """Print a simulated step, and the pipeline if it has one."""
    console = make_console()
    headline(console, simulation.job, figures)
    parts(console, simulation.job, figures, several=simulation.partition.rank_classes > 1)
    if run is not None:
        pipeline(console, run)
    _memory(console, figures)
    if "step_seconds_interval" in answer:
        low, high = answer["step_seconds_interval"]
        least, most = part_time(low, high), part_time(high, high)
        console.print(f"\nBetween {least} and {most} if the uncertain terms are all good or all bad.")
    classes = simulation.partition.rank_classes
    ending(console, simulation, f"{classes} {'class' if classes == 1 else 'classes'} of ranks", answer, out)


def every_rank(found: EveryRank, answer: Mapping[str, Any], out: Path | None) -> None:
    """Print a step in which every rank was simulated, and how it varies with the seed."""
    console, every = make_console(), found.simulation
    headline(console, every.job, found.figures)
    parts(console, every.job, found.figures, several=True)
    folded = every.nominal.step_seconds
    off = 100 * (every.step_seconds / folded - 1)
    console.print(
        f"\nDevice speeds, jitter and noise drawn with seed {every.seed}; this step is {abs(off):.1f} % "
        f"{'longer' if off >= 0 else 'shorter'} than the {step_time(folded)} of the folded engine, "
        "which lets all wait for the slowest device expected."
    )
    if (seeds := answer.get("seeds")) is not None:
        console.print(f"\nOver {seeds['count']} seeds (p10, p50, p90):")
        table = Table(box=None, show_header=False, pad_edge=False)
        for name, key in (
            ("step", "step_seconds"),
            ("compute", "compute_seconds"),
            ("exposed communication", "exposed_communication_seconds"),
            ("idle (host, skew)", "idle_seconds"),
        ):
            table.add_row(f"  {name}", *(f"{part_time(seeds[key][p], folded):>11}" for p in ("p10", "p50", "p90")))
        console.print(table)
    _memory(console, found.figures)
    ending(console, every.nominal, f"each of {every.job.ranks:,} ranks", answer, out)


def headline(console: Console, job: Job, figures: Report) -> None:
    """Print what was simulated, and the figures of the whole step."""
    total = figures.step_seconds
    title = "" if job.name == job.model.name else f"{escape(job.name)}: "
    console.print(
        f"{title}[bold]{escape(job.model.name)}[/] on [bold]{job.ranks:,}[/] "
        f"{'rank' if job.ranks == 1 else 'ranks'} of [bold]{escape(job.machine.name)}[/]"
    )
    console.print(
        f"grid {job.concrete_grid}, {counted(job.concrete_micro_sequences, 'sequence')} at a time, "
        f"{counted(job.micro_steps, 'micro-step')}"
    )
    if not figures.memory.fits:
        console.print("\n[bold red]This job cannot run: it does not fit into memory (see below).[/]")
    energy = figures.energy_joules
    console.print(
        f"\n[bold]{step_time(total)}[/] per step   {format_amount(figures.tokens_per_second, 0)} tokens/s   "
        + (f"{energy / 3.6e6:,.1f} kWh" if energy >= 3.6e6 else format_si(energy, "J", digits=3))
        + " (devices alone)"
    )
    if job.energy is not None or job.power_cap_watts is not None:
        drawn(console, job, figures)
    console.print(
        f"[bold]{format_amount(figures.hardware_percent_of_peak)} %[/] of the {job.precision} peak with recomputation "
        f"counted ({format_si(figures.hardware_flops_per_second, 'FLOP/s')}), "
        f"[bold]{format_amount(figures.model_percent_of_peak)} %[/] without "
        f"({format_si(figures.model_flops_per_second, 'FLOP/s')})"
    )
    if figures.hardware_percent_of_peak > 100:
        why = "attention counts whole, though its mask leaves half out, and products in 8 bits as others"
        console.print(f"[dim](above 100 %: {why})[/]")
    console.print()


def own_step(simulation: Simulation, figures: Report, answer: Mapping[str, Any], out: Path | None) -> None:
    """Print a simulated step of a module of the user's own, of which only the schedule is known."""
    console, job = make_console(), simulation.job
    console.print(f"[bold]recorded schedule[/] on [bold]{job.ranks:,}[/] ranks of [bold]{escape(job.machine.name)}[/]")
    console.print(f"grid {job.concrete_grid}")
    console.print(
        f"\n[bold]{step_time(figures.step_seconds)}[/] per step, "
        f"{format_si(answer['hardware_flops_per_second'], 'FLOP/s')} in matrix products\n"
    )
    classes = simulation.partition.rank_classes
    parts(console, job, figures, several=classes > 1)
    ending(console, simulation, f"{classes} {'class' if classes == 1 else 'classes'} of ranks", answer, out)


def parts(console: Console, job: Job, figures: Report, *, several: bool) -> None:
    """Print where the step of a rank goes; `several` says that ranks differ."""
    total = figures.step_seconds
    if several:
        console.print("Where the step of a rank goes, mean over all ranks:")
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(4):
        table.add_column()
    rows = [("compute", figures.compute_seconds, "blue")]
    if figures.slowest_device_wait_seconds > 0:
        rows.append(("wait for the slowest device", figures.slowest_device_wait_seconds, "cyan"))
    for axis, seconds in figures.exposed_by_axis.items():
        if seconds > 0 or (axis in job.concrete_grid.axes and job.concrete_grid.size(axis) > 1):
            over = f" (of {' × '.join(figures.wider[axis])})" if axis in figures.wider else ""
            rows.append((f"exposed communication, {axis}{over}", seconds, "yellow"))
    rows.append(("idle (host, skew)", figures.idle_seconds, "red"))
    for name, seconds, colour in rows:
        told = f"{part_time(seconds, total):>11}"
        table.add_row(f"  {name}", told, _percent(seconds, total), _bar(seconds, total, colour))
    console.print(table)
    waiting = {axis: s for axis, s in figures.peers_by_axis.items() if s > MIN_SHOWN * total}
    if waiting:
        by_axis = ", ".join(f"{axis} {part_time(seconds, total)}" for axis, seconds in waiting.items())
        # a rank may wait for a member while other collectives of its own are under way, which is not idle
        inside = sum(waiting.values()) <= figures.idle_seconds
        part = "of it" if inside else "in it, and beside other communication,"
        console.print(f"  {part} waiting for a group's last member to come: {by_axis}")


def ending(
    console: Console, simulation: Simulation, simulated: str, answer: Mapping[str, Any], out: Path | None
) -> None:
    """Print how it was simulated, and what to be aware of."""
    job = simulation.job
    roles = len(simulation.parts)
    ops = f"{simulation.ops:,} ops of {roles} roles" if roles > 1 else f"{simulation.ops:,} ops per rank"
    console.print(f"\n{ops}, {simulated} simulated, {answer['wall_seconds']:.2f} s")
    if simulation.global_links_left_out:
        console.print(
            "[yellow]Contention on the links between dragonfly groups was left out: with it the ranks "
            "fall into too many classes. The step may take longer.[/]"
        )
    if job.machine.caveats:
        console.print(f"[yellow]{escape(job.machine.name)}:[/] {escape(job.machine.caveats)}")
    if out is not None:
        console.print(f"Run written to {escape(str(out))}; look at {escape(str(out / 'timeline.html'))}")


def choice(made: Choice) -> None:
    """Print the candidates that `auto` was chosen from."""
    console = make_console()
    if made.among_strategies:
        _strategies(console, made)
        return
    model = strategy_of(made.best.job).ordered_by
    first = f"the best by the {model}" if model else "these" if len(made.simulations) < made.feasible else "all"
    if made.feasible == 1:
        console.print("One grid keeps the rules and fits into memory:")
    else:
        many = f"{made.feasible} grids that keep the rules and fit into memory"
        console.print(f"Chosen from {many}; {first} were simulated:")
    axes = made.best.job.concrete_grid.axes
    table = Table(" × ".join(axes), "sequences at a time", "step", box=None, pad_edge=False)
    for simulation in made.simulations:
        grid = simulation.job.concrete_grid
        table.add_row(
            " × ".join(map(str, grid.sizes)),
            str(simulation.job.concrete_micro_sequences),
            step_time(simulation.step_seconds),
        )
    console.print(table)
    console.print()


def _strategies(console: Console, made: Choice) -> None:
    """Print the best of each strategy; what was varied besides its grid is in its words."""
    console.print(
        f"strategy: auto, chosen by simulation from {made.feasible:,} candidates of {len(made.simulations)} "
        "strategies; the best of each, whether it trains or not:"
    )
    table = Table("", "grid", "sequences at a time", "options", "step", box=None, pad_edge=False)
    table.columns[-1].justify = "right"
    for simulation in made.simulations:
        job = simulation.job
        words = strategy_of(job).variant(job).words_on(job.concrete_grid).values()
        table.add_row(
            job.strategy,
            str(job.concrete_grid),
            str(job.concrete_micro_sequences),
            ", ".join(words),
            step_time(simulation.step_seconds),
        )
    console.print(table)
    for name, reason in made.cannot_run.items():
        console.print(f"  {name}: {escape(reason)}", soft_wrap=True)
    console.print(f"The fastest is simulated: [bold]{made.best.job.strategy}[/]\n")


def _memory(console: Console, figures: Report) -> None:
    memory = figures.memory
    no, why = "[bold red]does not fit[/]", escape(figures.memory_advice)
    verdict = "[green]fits[/]" if memory.fits_device else f"{no}: {why}"
    need, have = format_si(memory.per_rank_bytes, "B"), format_si(memory.capacity_bytes, "B")
    console.print(f"\nMemory {need} of {have} per rank: {verdict}")
    _categories(console, memory.by_category, max(memory.per_rank_bytes, memory.capacity_bytes))
    for tier, use in memory.tiers.items():
        what = "Host memory" if tier == "host" else "Drives"
        verdict = "[green]fits[/]" if use.fits else f"{no}: {why}" if memory.fits_device and tier == memory.full else no
        held = format_si(use.node_bytes, "B")
        if use.capacity_bytes is None:
            console.print(f"{what} {held} per node; the machine does not say how much there is")
        else:
            console.print(f"{what} {held} of {format_si(use.capacity_bytes, 'B')} per node: {verdict}")
        _categories(console, use.by_category, max(use.node_bytes, use.capacity_bytes or 0.0))


def _categories(console: Console, by_category: Mapping[str, float], whole: float) -> None:
    """Print sizes by category with bars, as shares of what is there."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, size in by_category.items():
        table.add_row(f"  {name}", f"{format_si(size, 'B', digits=3):>9}", _bar(size, whole, "magenta"))
    console.print(table)
