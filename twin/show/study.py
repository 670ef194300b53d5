"""A study on a terminal: its table, what matters most, where the files are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from twin.show.console import make_console

if TYPE_CHECKING:
    from twin.studies.importance import Importance
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
    if results.importance is not None:
        _importance(results.importance)
    _unable(results)
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
    from twin.studies.compute import UNFIT
    from twin.studies.objective import feasible
    from twin.studies.table import BEST, cell

    console = make_console()
    many = len(results.rows) > MAX_ROWS
    tables = [one for one in results.tables if one.title == BEST] if many else []
    tables = tables or [one for one in results.tables if one.title != BEST]
    for number, one in enumerate(tables):
        columns = [column for column in one.columns if column.key != "reason"]
        if number or one.title == BEST:
            console.print(f"{chr(10) if number else ''}[bold]{one.title}[/]")
        rows = one.rows[:MAX_ROWS]
        unfit = [row["status"] == "done" and not feasible(row) for row in rows]
        table = _table([column.title for column in columns] + [""] * any(unfit))
        for row, beyond in zip(rows, unfit, strict=True):
            cells = [escape(cell(column, row)) for column in columns] + [UNFIT] * beyond
            table.add_row(*cells, style="" if feasible(row) else "dim")
        console.print(table)
    if many:
        shown = len(tables[0].rows[:MAX_ROWS])
        which = f"best {shown}" if tables[0].title == BEST else f"first {shown}"
        console.print(f"The {which} of {len(results.rows):,} points; all are in table.csv.")


def _table(titles: Sequence[str], left: int = 0) -> Table:
    """Return an empty table whose first `left` columns are text."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for number, title in enumerate(titles):
        table.add_column(escape(title), justify="left" if number < left else "right", overflow="fold")
    return table


def _importance(found: Importance) -> None:
    from twin.studies.factorial import TITLES, cells, words

    console = make_console()
    console.print(f"\n{words(found)}")
    table = _table(TITLES, left=1)
    for line in cells(found):
        table.add_row(*(escape(value) for value in line))
    console.print(table)


def _unable(results: Results) -> None:
    """Say why points cannot run: each by itself, or by reason where they are many."""
    from twin.studies.compute import UNFIT
    from twin.studies.factorial import reasons
    from twin.studies.objective import feasible

    console = make_console()
    unable = [row for row in results.rows if not feasible(row)]
    if len(unable) > MAX_ROWS:
        console.print("")
        for word, count, row in reasons(results.rows):
            console.print(
                f"[yellow]{count:,} points:[/] {escape(word)}; "
                f"such as point {row['point']}: {escape(_short(row['reason']))}",
                soft_wrap=True,
            )
        return
    for row in unable:
        said = f"point {row['point']}" + ("" if row["status"] == "done" else f" {row['status']}")
        why = row["reason"] or UNFIT
        console.print(f"[yellow]{said}:[/] {escape(_short(why))}")


def _short(reason: str) -> str:
    return reason if len(reason) <= 2 * REASON_LENGTH else reason[: 2 * REASON_LENGTH] + "…"


def _effects(results: Results) -> None:
    from twin.studies.table import EFFECT_TITLES, effect_cells

    console = make_console()
    console.print(f"Step of the base job: {results.effects[0].base_seconds:.4g} s")
    table = _table(EFFECT_TITLES, left=1)
    moving = [effect for effect in results.effects if effect.swing_seconds > 0]
    for effect in moving[:MAX_EFFECTS]:
        table.add_row(*(escape(value) for value in effect_cells(effect)))
    console.print(table)
    still, fewer = len(results.effects) - len(moving), len(moving[MAX_EFFECTS:])
    less = f"{fewer} change less than these, " if fewer else ""
    console.print(f"{len(results.effects)} parameters moved; {less}{still} change nothing.")


def study_object(results: Results, wall_seconds: float) -> dict[str, Any]:
    """Return what `study --json` prints."""
    from twin.studies.directory import JOBS, TABLES
    from twin.studies.factorial import importance_json

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
        "importance": importance_json(results.importance),
        "wall_seconds": wall_seconds,
    }
