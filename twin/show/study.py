"""A study on a terminal: its table, what matters most, where the files are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from twin.show.console import make_console

if TYPE_CHECKING:
    from twin.studies.results import Results

MAX_ROWS, MAX_EFFECTS, REASON_LENGTH = 60, 25, 110


def study(results: Results, wall_seconds: float) -> None:
    """Print the results of a study."""
    from twin.studies.directory import TABLES

    console, run = make_console(), results.run
    console.print(f"[bold]{escape(run.loaded.title)}[/]")
    console.print(", ".join(f"{name}: {escape(value)}" for name, value in results.facts) + "\n")
    if results.effects:
        _effects(results)
    else:
        _points(results)
    refused = [row for row in results.rows if row["status"] != "done"]
    for row in refused[:MAX_ROWS]:
        reason = row["reason"]
        shown = reason if len(reason) <= 2 * REASON_LENGTH else reason[: 2 * REASON_LENGTH] + "…"
        console.print(f"[yellow]point {row['point']} {row['status']}:[/] {escape(shown)}")
    if caveats := results.caveats:
        console.print("")
        for machine, caveat in caveats.items():
            console.print(f"[dim]{escape(machine)}: {escape(caveat)}[/]")
    before = len(run.points) - run.computed
    earlier = f", {before:,} were there" if before else ""
    console.print(
        f"\n{run.computed:,} points computed{earlier}, {wall_seconds:.1f} s. "
        f"{escape(str(run.directory))}: {', '.join(TABLES)}, jobs/",
        soft_wrap=True,
    )


def _points(results: Results) -> None:
    from twin.studies.table import cell

    console = make_console()
    for number, (title, shown) in enumerate(results.tables):
        columns = [column for column in shown if column.key != "reason"]
        if number:
            console.print(f"\n[bold]{title}[/]")
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
        for column in columns:
            table.add_column(escape(column.title), justify="right", overflow="fold")
        for row in results.rows[:MAX_ROWS]:
            style = "" if row["status"] == "done" and row.get("memory_fits", True) else "dim"
            table.add_row(*(escape(cell(column, row)) for column in columns), style=style)
        console.print(table)
    if len(results.rows) > MAX_ROWS:
        console.print(f"The first {MAX_ROWS} of {len(results.rows):,} points; all are in table.csv.")


def _effects(results: Results) -> None:
    from twin.studies.table import EFFECT_TITLES, effect_cells

    console = make_console()
    console.print(f"Step of the base job: {results.effects[0].base_seconds:.4g} s")
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for number, title in enumerate(EFFECT_TITLES):
        table.add_column(title, justify="left" if number == 0 else "right", overflow="fold")
    moving = [effect for effect in results.effects if effect.swing_seconds > 0]
    for effect in moving[:MAX_EFFECTS]:
        table.add_row(*(escape(value) for value in effect_cells(effect)))
    console.print(table)
    still = len(results.effects) - len(moving)
    console.print(f"{len(results.effects)} parameters moved; {still} change nothing.")


def study_object(results: Results, wall_seconds: float) -> dict[str, Any]:
    """Return what `study --json` prints."""
    from twin.studies.directory import JOBS, TABLES

    run = results.run
    status = [row["status"] for row in results.rows]
    return {
        "study": run.loaded.study.study,
        "title": run.loaded.title,
        "directory": str(run.directory),
        "files": [*TABLES, f"{JOBS}/"],
        "points": results.rows,
        "done": status.count("done"),
        "refused": status.count("refused"),
        "crashed": status.count("crashed"),
        "computed": run.computed,
        "resumed": len(run.points) - run.computed,
        "effects": [
            {
                "parameter": e.parameter,
                "low_value": e.low_value,
                "high_value": e.high_value,
                "low_seconds": e.low_seconds,
                "high_seconds": e.high_seconds,
                "base_seconds": e.base_seconds,
                "swing_seconds": e.swing_seconds,
            }
            for e in results.effects
        ],
        "wall_seconds": wall_seconds,
    }
