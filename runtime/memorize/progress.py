"""How far a study is: a bar on standard error, if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

STEPS = 100
"""Of the bar, for one training."""


@contextmanager
def bar(total: int, *, shown: bool) -> Iterator[Callable[[str, float], None]]:
    """Show a bar for so many trainings; what is yielded is told what is done now, and how many trainings are."""
    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield lambda _label, _done: None
        return
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[label]}"),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=total, label="")
        yield lambda label, done: bars.update(task, completed=done, label=label)
