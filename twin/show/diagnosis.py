"""Who is slow, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from twin.show.console import make_console

if TYPE_CHECKING:
    from twin.description.job import Job
    from twin.diagnose.finding import Diagnosis


def diagnosis(found: Diagnosis, job: Job) -> None:
    """Print what was found, or that nothing was."""
    console = make_console()
    steps = f"{found.steps} step{'s' if found.steps != 1 else ''}"
    console.print(
        f"[bold]{escape(job.name or '')}[/] on {found.ranks:,} ranks ({job.concrete_grid}): {steps}, median "
        f"{found.step_seconds:.4g} s; a healthy one takes {found.expected_seconds:.4g} s by the twin\n"
    )
    longer = found.not_located
    if not found.findings:
        stands_out = "no rank, host, link or axis stands out"
        if longer is None:
            console.print(f"[bold green]nothing found[/]: {stands_out}")
        elif longer.assumed:
            console.print(f"[bold yellow]nothing found[/]: {stands_out}; but {escape(longer.text)}")
        else:
            console.print(f"[bold red]not located[/]: {escape(longer.text)}; {stands_out}")
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        worth = "were it alone: mended, a step is shorter by"
        for name, justify in (("", "left"), ("confidence", "right"), (worth, "right")):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]  # rich's literals
        for each in found.findings:
            saved = "" if each.saved_share is None else f"{100 * each.saved_share:.1f} %"
            table.add_row(
                f"[bold red]{escape(each.text)}[/]\n  [dim]{escape(each.evidence)}[/]",
                f"{100 * each.confidence:.1f} %",
                saved,
            )
        console.print(table)
        if found.saved_share is not None and len(found.findings) > 1:
            console.print(f"all of them mended, a step is shorter by {100 * found.saved_share:.1f} %")
        if longer is not None:
            console.print(f"[bold red]not located[/]: without that {escape(longer.text)}")
    for note in found.notes:
        console.print(f"[dim]note: {escape(note)}[/]")
