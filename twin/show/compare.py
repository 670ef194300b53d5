"""Two traces held against each other on a terminal."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twin.show.console import make_console, print_json

if TYPE_CHECKING:
    from twin.compare.compare import Comparison
    from twin.compare.terms import Term

BAR_WIDTH = 24
WORST_SHOWN = 5


def comparison(found: Comparison, *, as_json: bool, page: Path | None = None) -> None:
    """Print a comparison."""
    if as_json:
        print_json(_object(found))
        return
    from twin.compare.page import facts_of

    console = make_console()
    console.print(f"[bold]{_plain(found.job)}[/]: {found.kinds[0]} against {found.kinds[1]}\n")
    facts = Table(box=None, show_header=False, pad_edge=False)
    for what, value in facts_of(found):
        facts.add_row(f"  {what}", f"[bold]{_plain(value)}[/]")
    console.print(facts)
    for warning in found.warnings:
        console.print(f"[yellow]Warning:[/] {_plain(warning)}")
    _waterfall(console, found)
    _stages(console, found)
    _errors(console, found)
    _worst(console, found)
    if page is not None:
        console.print(f"\nPage written to {_plain(str(page))}")


def _object(found: Comparison) -> dict[str, Any]:
    clock = found.clock
    return asdict(found) | {
        "clock": {
            "method": clock.method,
            "uncertainty_seconds": clock.uncertainty_ns / 1e9,
            "said_uncertainty_seconds": clock.said_ns / 1e9,
        }
    }


def _plain(text: str) -> str:
    """A stranger's word as it is: no markup, and nothing that a terminal would obey."""
    return escape("".join(c if c.isprintable() else "�" for c in text))


def _waterfall(console: Console, found: Comparison) -> None:
    from twin.compare.stage_rows import subject_of
    from twin.description.units import format_seconds

    subject = subject_of(found)
    console.print(f"\nFrom the predicted to the measured step, {_plain(subject)}; the terms add up exactly:")
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for head in ("predicted", "measured", "difference"):
        table.add_column(head, justify="right")
    table.add_column("")
    most = max((abs(t.difference_seconds) for t in found.terms), default=0.0)
    for term in found.terms:
        table.add_row(
            f"  {_plain(term.label)}",
            format_seconds(term.predicted_seconds),
            format_seconds(term.measured_seconds),
            format_seconds(term.difference_seconds),
            _bar(term, most),
        )
    table.add_row(
        "  [bold]step[/]",
        format_seconds(found.predicted_seconds),
        format_seconds(found.measured_seconds),
        format_seconds(found.difference_seconds),
        "",
    )
    console.print(table)


def _stages(console: Console, found: Comparison) -> None:
    from twin.compare.stage_rows import stage_rows
    from twin.description.units import format_seconds

    rows = stage_rows(found)
    if not rows:
        return
    console.print("\nStage by stage, mean over the ranks of each; what is exposed, predicted and below it measured:")
    table = Table("", *(title for title, _, _ in rows[0].parts), box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        name = f"[bold]{_plain(row.name)}, critical[/]" if row.critical else _plain(row.name)
        table.add_row(f"  {name}", *(format_seconds(predicted) for _, predicted, _ in row.parts))
        table.add_row("", *(format_seconds(measured) for _, _, measured in row.parts))
    console.print(table)


def _bar(term: Term, most: float) -> str:
    length = round(BAR_WIDTH * abs(term.difference_seconds) / most) if most else 0
    colour = "white" if term.unexplained else "red" if term.difference_seconds > 0 else "blue"
    notes = [word for word, holds in (("unexplained", term.unexplained), ("below clocks", term.below_clocks)) if holds]
    return f"[{colour}]{'█' * length}[/]" + (f" ({', '.join(notes)})" if notes else "")


def _errors(console: Console, found: Comparison) -> None:
    from twin.compare.page import percent
    from twin.description.units import format_seconds

    steps = f"the median of {len(found.steps)} measured steps" if len(found.steps) > 1 else "the measured step"
    console.print(f"\nSingle ops against {steps}; collectives from when their last member came, skew apart:")
    table = Table(
        "ops",
        "count",
        "predicted",
        "measured",
        "median error",
        "90 % below",
        "bias",
        "skew: predicted, measured",
        box=None,
        pad_edge=False,
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for group in found.errors:
        if group.by in {"kind", "axis", "stage"}:
            skew = (
                f"{format_seconds(group.predicted_skew_seconds)}, {format_seconds(group.measured_skew_seconds)}"
                if group.part == "collective"
                else ""
            )
            name = f"axis {group.name}" if group.by == "axis" else group.name
            name += f", {group.part}" if group.by == "stage" else ""
            table.add_row(
                f"  {_plain(name)}",
                f"{group.ops:,}",
                format_seconds(group.predicted_seconds),
                format_seconds(group.measured_seconds),
                percent(group.median_error),
                percent(group.p90_error),
                percent(group.bias, signed=True),
                skew,
            )
    console.print(table)


def _worst(console: Console, found: Comparison) -> None:
    from twin.compare.stage_rows import op_of
    from twin.description.units import format_seconds

    console.print("\nFurthest off (more by phase and name: --json, --html):")
    table = Table(box=None, show_header=False, pad_edge=False)
    for op in found.worst[:WORST_SHOWN]:
        table.add_row(
            f"  {_plain(op_of(op))}",
            f"{format_seconds(op.predicted_seconds)} predicted",
            f"{format_seconds(op.measured_seconds)} measured",
        )
    console.print(table)
