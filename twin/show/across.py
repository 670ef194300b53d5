"""A search over strategies on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twin.description.units import format_amount, format_memory
from twin.show.console import make_console, step_time

if TYPE_CHECKING:
    from twin.search.across import Across
    from twin.search.entries import RankedCandidate


def across(found: Across, top: int, out: Path | None) -> None:
    """Print the best of each strategy, what trades time for memory, and what cannot run."""
    console, job = make_console(), found.best.job
    console.print(
        f"[bold]{escape(job.model.name)}[/] on {job.ranks:,} ranks of [bold]{escape(job.machine.name)}[/], "
        f"{job.batch.sequences:,} sequences per step, {found.wall_seconds:.1f} s"
    )
    console.print("\nThe best of each strategy:")
    _table(console, [(name, one.entries[0]) for name, one in found.searches.items()])
    for name, one in found.searches.items():
        console.print(
            f"  {name}: {len(one.entries):,} candidates, {one.feasible:,} feasible, {one.simulated:,} simulated"
            + (f", {one.pruned:,} that cannot be the fastest" if one.pruned else "")
        )
    for name, reason in found.reasons.items():
        console.print(f"  {name}: {escape(reason)}", soft_wrap=True)
    front = found.pareto[:top]
    if len(front) > 1:
        console.print("\nLess memory for more time, of those that were simulated:")
        _table(console, front)
    if job.machine.caveats:
        console.print(f"[yellow]{escape(job.machine.name)}:[/] {escape(job.machine.caveats)}")
    if out is not None:
        console.print(f"Search written to {escape(str(out))}; run {escape(str(out / 'best.yaml'))}")


def chosen(found: Across, fixed: Sequence[str]) -> str:
    """Say what was compared for a run with `strategy: auto`, and what it trains; `fixed` are keys of its file."""
    console, job = make_console(), found.best.best.job
    many = sum(one.feasible for one in found.searches.values())
    with console.capture() as said:
        console.print(
            f"strategy: auto, chosen by simulation on [bold]{escape(job.machine.name)}[/] from {many:,} candidates "
            f"that train, {found.wall_seconds:.1f} s; the best of each strategy:"
        )
        if fixed:
            console.print(f"The job fixes {' and '.join(fixed)}; that is chosen too.")
        _table(console, [(name, one.entries[0]) for name, one in found.searches.items()])
        for name, reason in found.reasons.items():
            console.print(f"  {name}: {escape(reason)}", soft_wrap=True)
        if job.machine.caveats:
            console.print(f"[yellow]{escape(job.machine.name)}:[/] {escape(job.machine.caveats)}")
        console.print(f"The fastest is trained: [bold]{job.strategy}[/] on {job.concrete_grid}")
    return said.get().rstrip()


def _table(console: Console, rows: list[tuple[str, RankedCandidate]]) -> None:
    table = Table("", "grid", "options", "step", "exposed", "of peak", "memory", box=None, pad_edge=False)
    for column in table.columns[3:]:
        column.justify = "right"
    for name, entry in rows:
        figures, candidate = entry.figures, entry.candidate
        if figures is None or candidate.memory is None:
            continue
        sizes = candidate.grid.by_axis()
        options = [f"micro-batch {candidate.micro_sequences}", *candidate.options.words_on(candidate.grid).values()]
        table.add_row(
            name,
            " × ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1),
            ", ".join(options),
            step_time(figures.step_seconds),
            f"{100 * figures.exposed_share:.1f} %",
            f"{format_amount(figures.hardware_percent_of_peak)} %",
            format_memory(candidate.memory.per_rank_bytes),
        )
    console.print(table)
