"""What rank 0 shows: a progress bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINES = 20
"""Lines of a whole run where there is no terminal."""


def tell(text: str, *, error: bool = False) -> None:
    """Print a line, on standard error if told to; a full disk or a reader that has gone is no reason to end a run."""
    with suppress(OSError):
        print(text, file=sys.stderr if error else sys.stdout, flush=True)


class Display:
    """Shows a run; silent on every rank but the first."""

    def __init__(self, *, shown: bool, steps: int, start: int) -> None:
        self.shown, self.steps = shown, steps
        self._every = max(1, steps // LINES)
        self._due, self._last = start + self._every, start
        self._progress: Progress | None = None
        console = Console(stderr=True)
        if shown and console.is_terminal:
            self._progress = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[figures]}"),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task("", total=steps, completed=start, figures="")
            self._progress.start()

    def say(self, text: str) -> None:
        """Print a line."""
        if not self.shown:
            return
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            tell(text)

    def warn(self, text: str) -> None:
        """Print a line on standard error."""
        if self.shown:
            tell(f"fourfold: {text}", error=True)

    def step(self, figures: Mapping[str, Any]) -> None:
        """Show the figures of a step that is done."""
        if not self.shown:
            return
        done = figures["step"] + 1
        if done <= self._last:  # the run went back
            self._due = done
        self._last = done
        if self._progress is not None:
            self._progress.update(self._task, completed=done, figures=line(figures, short=True))
        elif done >= self._due or done == self.steps:  # not all steps have figures
            self._due = done - done % self._every + self._every
            self.say(f"step {figures['step'] + 1:>{len(str(self.steps))}}/{self.steps}  {line(figures)}")

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def line(figures: Mapping[str, Any], *, short: bool = False) -> str:
    """One step in one line.

    >>> line({"loss": 2.5, "tokens_per_second": 4321.0, "model_flops_utilisation": 0.41,
    ...       "memory_bytes": 3e9, "gradient_norm": 1.0})
    'loss 2.5000  norm 1.00  4,321 tokens/s  41.0 % model-FLOP utilisation  3.0 GB'
    """
    parts = [f"loss {figures['loss']:.4f}"]
    if figures.get("gradient_norm") is not None and not short:
        parts.append(f"norm {figures['gradient_norm']:.2f}")
    if figures.get("tokens_per_second"):
        parts.append(f"{figures['tokens_per_second']:,.0f} tokens/s")
    if figures.get("model_flops_utilisation") is not None:
        parts.append(f"{figures['model_flops_utilisation'] * 100:.1f} %" + ("" if short else " model-FLOP utilisation"))
    parts.append(f"{figures['memory_bytes'] / 1e9:.1f} GB")
    return "  ".join(parts)


@contextmanager
def progress(title: str, total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show on standard error, if that is a terminal, how much is done of work that tells."""
    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield lambda _done: None
        return
    with Progress(TextColumn(title), BarColumn(), MofNCompleteColumn(), console=console, transient=True) as bars:
        task = bars.add_task("", total=total)
        yield lambda done: bars.update(task, completed=done)


class Stopwatch:
    """Seconds since it was last read, without pauses."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        return seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is done meanwhile."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._since += time.perf_counter() - begin
