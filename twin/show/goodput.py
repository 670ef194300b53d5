"""What failures cost, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from twin.description.units import format_si
from twin.show.console import make_console

if TYPE_CHECKING:
    from rich.console import Console

    from twin.description.job import Job
    from twin.goodput.predict import Prediction

BAR_WIDTH = 30
PARTS = {
    "useful": "useful work",
    "slow": "steps slowed by a device or a link",
    "lost": "done again after stops",
    "saving": "steps waiting for checkpoints",
    "restarting": "restarting and reading",
    "waiting": "waiting for a node",
}
SAVED = {
    "sync": "steps wait until they are written",
    "async": "written while steps go on",
    "memory": "on the file system every so often, while steps go on",
}


def goodput(job: Job, found: Prediction, too_large: str, gained: dict[str, float] | None = None) -> None:
    """Print a prediction.

    `too_large` says how a job does not fit into memory, `gained` what finding slow devices sooner is worth.
    """
    console, figures = make_console(), found.figures()
    share, stops = figures["goodput"], figures["stops"]
    console.print(
        f"[bold]{escape(job.model.name)}[/] on [bold]{job.ranks:,}[/] ranks of [bold]{escape(job.machine.name)}[/], "
        f"{figures['days']:g} days, {found.plan.step_seconds:.3g} s a step\n"
    )
    console.print(
        f"[bold]{100 * share['p50']:.1f} %[/] of the time is useful, the median over {len(found.runs)} seeds (p10 "
        f"{100 * share['p10']:.1f} %, p90 {100 * share['p90']:.1f} %); {stops['p50']:.0f} stops, one every "
        f"{_time(figures['mean_seconds_between_stops'])}\n"
    )
    if too_large:
        console.print(f"[bold red]This job cannot run: it {escape(too_large)}.[/]\n")
    console.print("Where the time goes, mean over seeds:")
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, words in PARTS.items():
        part = figures["parts"][name]
        table.add_row(f"  {words}", f"{100 * part:6.2f} %", "█" * round(BAR_WIDTH * part))
    console.print(table)
    _slow(console, job, found, gained)
    chosen = "the best found" if found.chosen else "as given"
    every, stall, writing, young, daly = (
        _time(figures[key])
        for key in (
            "checkpoint_interval_seconds",
            "checkpoint_stall_seconds",
            "checkpoint_write_seconds",
            "young_interval_seconds",
            "daly_interval_seconds",
        )
    )
    what = "A copy of {} at a neighbour" if found.policy.mode == "memory" else "A checkpoint of {}"
    console.print(
        f"\n{what.format(format_si(figures['checkpoint_bytes'], 'B', digits=3))} every {every} ({chosen}), "
        f"{SAVED[found.policy.mode]}: {stall} of waiting each, {writing} of writing"
    )
    console.print(
        f"Young's interval is {young}, Daly's {daly}; in closed form {100 * figures['closed_form_goodput']:.1f} % are "
        "useful (writing in the background, copies in memory and spare nodes not counted)"
    )


def _slow(console: Console, job: Job, found: Prediction, gained: dict[str, float] | None) -> None:
    """Say which parts become slow, what that does to a step, and what finding them sooner is worth."""
    known = found.figures()["slowdowns"]
    if (device := known.get("device")) is not None:
        console.print(
            f"\nA device becomes slow every {_time(device['mean_seconds_between'])}: steps take "
            f"{_time(device['step_seconds'])} until it is found, after {_time(device['seconds'])}"
        )
    if (link := known.get("link")) is not None:
        console.print(
            f"A link becomes slow every {_time(link['mean_seconds_between'])}: steps take "
            f"{_time(link['step_seconds'])} for {_time(link['seconds'])} on average"
        )
    if gained is not None:
        hours = gained["run_seconds_gained"] * job.ranks / 3600.0
        console.print(
            f"Found after {_time(gained['seconds'])} in place of {_time(gained['instead_of_seconds'])}: "
            f"[bold]{100 * gained['goodput_gained']:+.2f}[/] points of useful time, "
            f"{hours:+,.0f} device hours of this run"
        )


def _time(seconds: float) -> str:
    """Write a time with the unit that suits it.

    >>> _time(90.0), _time(7200.0), _time(0.25)
    ('1.5 min', '2 h', '0.25 s')
    """
    for unit, factor in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds:.3g} s"
