"""The console, progress, JSON, and flat answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from twin.description.units import format_si, split_name

if TYPE_CHECKING:
    from rich.console import Console

# Rich is imported where something is drawn: an answer in JSON needs none of it.


def make_console() -> Console:
    """Make the console for standard output; plain and 120 wide if it is not a terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 120
    return Console(width=width, highlight=False)


def step_time(value: float) -> str:
    """Write the time of a step; of a small one in milliseconds, where candidates lie close together."""
    return part_time(value, value)


def part_time(value: float, step: float) -> str:
    """Write the time of a part of a step in the step's unit.

    >>> part_time(0.00028, 0.000714), part_time(0.00028, 2.0)
    ('0.280 ms', '0.000 s')
    """
    return f"{value:.3f} s" if step >= 0.1 else f"{1e3 * value:.3f} ms"


def print_json(value: Any) -> None:
    """Print one JSON object."""
    print(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error, if it is a terminal, for work that reports (done, all)."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def answer(values: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a flat answer."""
    if as_json:
        print_json(values)
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for key, value in values.items():
        name, dimension = split_name(key)
        shown = value
        if isinstance(value, float):
            unit = dimension.si if dimension else ""
            shown = format_si(value, {"seconds": "s", "bytes": "B", "flops": "FLOP"}.get(key, unit))
            if not dimension and key not in {"seconds", "bytes", "flops", "seconds_with_all_groups"}:
                shown = f"{value:.4g}"
            if key == "seconds_with_all_groups":
                shown = format_si(value, "s")
        elif isinstance(value, dict):
            shown = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items())
        table.add_row(f"[dim]{name.replace('_', ' ')}[/]", escape(str(shown)))
    make_console().print(table)


def vars_of(value: Any) -> dict[str, Any]:
    """Return a dataclass as a dictionary of its fields."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
