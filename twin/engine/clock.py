"""What happens next: a heap of times, and what Links need of SimPy's environment."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Timer:
    """Something that happens at a time, and whoever wants to know."""

    __slots__ = ("callbacks",)

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], None]] | None = []


class Clock:
    """Calls back at times, those of one time in the order in which they were asked for."""

    __slots__ = ("_heap", "_number", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._number = 0
        self._heap: list[tuple[float, int, Callable[[Any, int], None], Any, int]] = []

    def at(self, time: float, happen: Callable[[Any, int], None], subject: Any, plan: int = 0) -> None:
        """Call `happen(subject, plan)` then."""
        self._number += 1
        heappush(self._heap, (time, self._number, happen, subject, plan))

    def timeout(self, delay: float) -> Timer:
        """Return a timer that happens so many seconds from now."""
        timer = Timer()
        self.at(self.now + delay, _happen, timer)
        return timer

    def run(self) -> None:
        """Let everything happen, in order."""
        heap = self._heap
        while heap:
            self.now, _, happen, subject, plan = heappop(heap)
            happen(subject, plan)


def _happen(timer: Timer, _plan: int) -> None:
    """Call whoever wants to know."""
    for callback in timer.callbacks or ():
        callback(timer)
