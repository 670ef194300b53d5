"""Predictions beside measurements on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from twin.description.units import format_seconds
from twin.show.console import make_console, print_json, vars_of
from twin.validate.groups import by_kind

if TYPE_CHECKING:
    from twin.validate.groups import Group, Validation
    from twin.validate.validate import PublishedValidation


COLLECTIVES_TITLE = "Collectives, package data (Frontier all-gather from 256 MiB: the source reports spikes below)"
WORST_SHOWN = 5
LONGEST_NAME = 48
"""Letters of a group's name for people; JSON has it whole."""
ITERATION_COLUMNS = {"inside": "in interval", "constant_mfu_mean": "one MFU"}
"""Figures that groups of training iterations have besides, and their titles."""
DERIVED = {
    "group",
    "predicted",
    "measured",
    "error",
    "source",
    "microseconds",
    "iteration_milliseconds",
    "predicted_microseconds",
    "measured_microseconds",
    "predicted_milliseconds",
    "measured_milliseconds",
    "predicted_seconds",
    "measured_seconds",
    "interval",
    "inside",
    "measured_mfu",
    "measured_from",
    "assumed",
    "step_milliseconds",
}
"""Columns of a compared row that the shown row does not repeat."""


def _groups(title: str, groups: Sequence[Group]) -> Table:
    figures = [vars_of(g) for g in groups]
    more = {key: said for key, said in ITERATION_COLUMNS.items() if figures and all(key in of for of in figures)}
    titles = ("group", "rows", "median error", "mean error", "90 % below", "bias", *more.values())
    table = Table(*titles, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, g, of in zip(labels([g.name for g in groups]), groups, figures, strict=True):
        shown = (str(g.count), f"{g.median:.1%}", f"{g.mean:.1%}", f"{g.p90:.1%}", f"{g.bias:+.1%}")
        table.add_row(escape(name), *shown, *(f"{of[key]:.1%}" for key in more))
    return table


def shortened(name: str) -> str:
    """Leave out the middle of a long name: sources differ at both ends."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half].rstrip()} … {name[-half:].lstrip()}"


def _amount(row: Mapping[str, Any], side: str) -> str:
    """Write what was predicted or measured with its unit, where the row says that it is a time."""
    for unit, seconds in (("microseconds", 1e-6), ("milliseconds", 1e-3), ("seconds", 1.0)):
        if f"{side}_{unit}" in row:
            return format_seconds(float(row[f"{side}_{unit}"]) * seconds, digits=4)
    return f"{row[side]:.4g}"


def labels(names: Sequence[str]) -> list[str]:
    """Shorten names; of those that would look alike the second half begins where they differ.

    >>> tables = [f"a repository with quite a long name, release {n}, README of the recipe, step times" for n in "12"]
    >>> labels(tables)
    ['a repository with quite … 1, README of the recipe,', 'a repository with quite … 2, README of the recipe,']
    """
    found = [shortened(name) for name in names]
    for label in [label for label, count in Counter(found).items() if count > 1]:
        own = [number for number, each in enumerate(found) if each == label]
        if len({names[number] for number in own}) == 1:
            continue
        alike = [names[number] for number in own]
        differ = next((i for i, letters in enumerate(zip(*alike, strict=False)) if len(set(letters)) > 1), 0)
        begin, half = alike[0].rfind(" ", 0, differ) + 1, LONGEST_NAME // 2
        rests = [name[begin:] for name in alike]
        enough = (n for n in range(half, max(map(len, rests))) if len({rest[:n] for rest in rests}) == len(own))
        length = next(enough, half)
        for number, rest in zip(own, rests, strict=True):
            found[number] = f"{names[number][:half].rstrip()} … {rest[:length].rstrip()}"
    return found


def measurements(result: Validation, *, as_json: bool) -> None:
    """Print a comparison with a user's measurements."""
    if as_json:
        print_json(
            {
                "kind": result.kind,
                "groups": [vars_of(g) for g in result.groups],
                "rows": result.rows,
                "skipped": result.skipped,
                **({"pieces": [piece.as_json() for piece in result.pieces]} if result.pieces else {}),
            }
        )
        return
    console = make_console()
    console.print(_groups(f"Predicted against measured: {result.kind}", result.groups))
    if result.kind == "iterations" and result.rows:
        console.print(
            "[dim]one MFU: mean error of the one share of the peak that fits these rows best, chosen after the fact[/]"
        )
    worst = sorted(result.rows, key=lambda row: -abs(row["error"]))[:WORST_SHOWN]
    if len(result.rows) > WORST_SHOWN:
        console.print(f"The {WORST_SHOWN} rows that are furthest off (all rows: --json)")
    table = Table("row", "predicted", "measured", "error")
    for row in worst:
        own = {k: v for k, v in row.items() if k not in DERIVED} if "id" not in row else {"": row["id"]}
        shown = ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{v}" for k, v in own.items())
        table.add_row(escape(shown), _amount(row, "predicted"), _amount(row, "measured"), f"{row['error']:+.1%}")
    console.print(table)
    if result.pieces:
        console.print(_groups("Predicted against measured: peak memory, layers, activations", by_kind(result.pieces)))
    for reason, count in sorted(result.skipped.items(), key=lambda item: -item[1]):
        console.print(f"[yellow]{count} rows left out:[/] {escape(reason)}")
    if not result.rows:
        console.print("[bold red]No row could be compared.[/]")


def published(result: PublishedValidation, *, as_json: bool) -> None:
    """Print the comparison with published runs."""
    if as_json:
        print_json(
            {
                **{
                    part: [vars_of(c) | {"error": c.error} for c in getattr(result, part)]
                    for part in ("weak_scaling", "other_grids", "ablation", "kernel_tuning")
                },
                "weak_scaling_summary": vars_of(result.summary),
                "collectives": [vars_of(g) for g in result.collectives],
            }
        )
        return
    console = make_console()
    parts = (
        ("Weak scaling, seconds per batch (arXiv 2502.08145)", result.weak_scaling),
        ("The same, on grids that the authors' scripts point to", result.other_grids),
        ("Overlap ablation, GPT-80B on 8,192 GCDs of Frontier", result.ablation),
        ("Kernel tuning, GPT-320B on Frontier, computation per batch", result.kernel_tuning),
    )
    for title, part in parts:
        table = Table(
            "case",
            "predicted",
            "measured",
            "error",
            "compute",
            "wait",
            "exposed",
            "grid",
            title=title,
            title_justify="left",
        )
        for c in part:
            d = c.details
            low, high = d.get("interval", (c.predicted, c.predicted))
            table.add_row(
                escape(c.name),
                f"{c.predicted:.2f} s" + (f" [{low:.2f}–{high:.2f}]" if low < high else ""),
                f"{c.measured:.2f} s",
                f"{c.error:+.1%}",
                f"{d['compute_seconds']:.2f}",
                f"{d['slowest_device_wait_seconds']:.2f}",
                f"{d['exposed_seconds']:.2f}",
                " × ".join(str(size) for size in d["grid"].values()),
            )
        console.print(table)
    s = result.summary
    worst = max(abs(c.error) for c in result.weak_scaling)
    console.print(
        f"Weak scaling: median error {s.median:.1%}, largest {worst:.1%}. Nothing was fitted to these times.\n"
    )
    console.print(_groups(COLLECTIVES_TITLE, result.collectives))
